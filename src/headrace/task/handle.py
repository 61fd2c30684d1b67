"""Handles: what an enqueue call returns. A handle reads a job's state and result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID

import msgspec

from headrace.errors import ConfigError, JobCancelled, JobDead, RemoteTaskError, ResultExpired
from headrace.model import duration
from headrace.model.job import Job, JobId, JobState, job_id
from headrace.runtime.blocking import blocking
from headrace.runtime.portal import portal
from headrace.task.codec import Signature

if TYPE_CHECKING:
    from headrace.policy.explain.answer import Explanation
    from headrace.task.call import JobCall

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Timeout = float | duration.Duration | None
"""Seconds, `"30s"`, a timedelta; None: as long as it takes."""


class Put(NamedTuple):
    """The answer for one enqueued job."""

    id: JobId
    created: bool
    """False: an existing job has the same key or unique lock."""


class Watch(Protocol):
    """The part of an app that a handle needs."""

    async def ajob(self, id: JobId) -> Job: ...

    async def aexplain(self, id: JobId) -> Explanation: ...

    async def afinished(self, id: JobId, timeout: float | None) -> Job: ...

    async def astop(self, id: JobId, reason: str | None) -> bool: ...

    def put_call(self, call: JobCall[Any], tx: object | None) -> Put: ...

    async def aput_call(self, call: JobCall[Any], tx: object | None) -> Put: ...


class Handle(msgspec.Struct, Generic[R_co], eq=False):
    """One enqueued job. A handle is a small object, because a bulk call makes many."""

    _home: Watch
    _codec: Signature
    _where: UUID
    _place: int | None = None
    """The place in a bulk call; the id is made from (batch, place) when it is asked for."""
    created: bool = True
    """Whether this call made the job. False: an existing job has the same key or unique lock."""

    @property
    def id(self) -> JobId:
        """The job's id."""
        if self._place is not None:
            self._where = job_id(self._where, self._place)
            self._place = None
        return JobId(self._where)

    async def astatus(self) -> Job:
        """The job at this moment; raises JobNotFound."""
        return await self._home.ajob(self.id)

    status = blocking(astatus)

    async def aexplain(self) -> Explanation:
        """Why the job is not running and, where that can be known, when it will; raises JobNotFound."""
        return await self._home.aexplain(self.id)

    explain = blocking(aexplain)

    def result(self, timeout: Timeout = None) -> R_co:
        """What the task returned, when it has; raises JobDead, JobCancelled, JobHeld, ResultTimeout, ResultExpired, JobNotFound.

        In async code use `aresult`, because this method would block the event loop.
        """
        # It is not made from `aresult`: it refuses to block a loop, and the caller's own thread decodes the result.
        from headrace.runtime import event_loop

        if event_loop.runs_here():
            raise RuntimeError(
                f"result() would block the event loop until {self!r} ends: write `await handle.aresult()`"
            )
        limit = seconds(timeout)
        return cast("R_co", outcome(portal.run(lambda: self._home.afinished(self.id, limit)), self._codec))

    async def aresult(self, timeout: Timeout = None) -> R_co:
        """What the task returned, when it has; raises JobDead, JobCancelled, JobHeld, ResultTimeout, ResultExpired, JobNotFound."""
        return cast("R_co", outcome(await self._home.afinished(self.id, seconds(timeout)), self._codec))

    async def acancel(self, reason: str | None = None) -> bool:
        """True: it will not run, or its worker will be asked to stop it. False: it had ended. Raises JobNotFound."""
        return await self._home.astop(self.id, reason)

    cancel = blocking(acancel)

    # ── what follows ─────────────────────────────────────────────────────────

    @property
    def out(self) -> R_co:
        """Stands for the result of this job as an argument of another one, which runs when this one is done."""
        from headrace.task.links import Out

        return cast("R_co", Out(self))

    @overload
    def then(
        self: Handle[T],
        task: Callable[Concatenate[T, P], Coroutine[Any, Any, S]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Handle[S]: ...
    @overload
    def then(
        self: Handle[T], task: Callable[Concatenate[T, P], JobCall[S]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[S]: ...
    @overload
    def then(
        self: Handle[T], task: Callable[Concatenate[T, P], S], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[S]: ...
    def then(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueue a job that runs when this one is done, with its result as the first argument: `handle.then(mail, "en")`.

        `task` is a task, or `task.using(…).job`.
        """
        call = self._next(task, args, kwargs)
        put = self._home.put_call(call, None)
        return Handle(self._home, call.codec, put.id, created=put.created)

    @overload
    async def athen(
        self: Handle[T],
        task: Callable[Concatenate[T, P], Coroutine[Any, Any, S]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Handle[S]: ...
    @overload
    async def athen(
        self: Handle[T], task: Callable[Concatenate[T, P], JobCall[S]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[S]: ...
    @overload
    async def athen(
        self: Handle[T], task: Callable[Concatenate[T, P], S], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[S]: ...
    async def athen(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Enqueue a job that runs when this one is done, with its result as the first argument."""
        call = self._next(task, args, kwargs)
        put = await self._home.aput_call(call, None)
        return Handle(self._home, call.codec, put.id, created=put.created)

    def _next(self, task: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobCall[Any]:
        from headrace.task.links import call_after

        return call_after(self.out, task, args, kwargs)

    def __repr__(self) -> str:
        return f"<Handle {self.id} of {self._codec.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


def outcome(job: Job, codec: Signature) -> Any:
    """The result of a finished job, or the error for how it ended."""
    label = f"job {job.id} of {job.task}"
    if job.state is JobState.CANCELLED:
        raise JobCancelled(f"{label} was cancelled" + (f": {job.note}" if job.note else ""))
    if job.state is JobState.DEAD:
        raise _dead(job, label)
    if job.result_expired:
        raise ResultExpired(
            f"{label} is done; its result is not kept, because its result_ttl is over or 0: raise result_ttl to keep it longer"
        )
    return codec.decode_result(job.result)


def _dead(job: Job, label: str) -> JobDead:
    why = f" ({job.note})" if job.note else ""
    if not job.history:
        return JobDead(f"{label} is dead{why}")
    last = job.history[-1]
    # The exception's name is a text from the store. It is never imported.
    error = RemoteTaskError(f"{label} is dead{why}: {last.kind}: {last.message}", last.kind)
    if last.traceback:
        error.add_note(last.traceback)
    return error


def seconds(timeout: Timeout) -> float | None:
    """A timeout in seconds, or a ConfigError."""
    if timeout is None:
        return None
    if isinstance(timeout, str | timedelta):
        return duration.parse(timeout, name="timeout").total_seconds()
    if not isinstance(timeout, int | float) or not 0 <= timeout < float("inf"):
        raise ConfigError(f'timeout = {timeout!r}: seconds, "30s", a timedelta, or None to wait for good')
    return float(timeout)
