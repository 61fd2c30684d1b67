"""The job that a task runs for: `current_job()`. The worker carries out its methods, through `Running`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from headrace.errors import ConfigError, HeadraceError
from headrace.model.gate import Gate, GateId
from headrace.model.job import Claimed, JobId
from headrace.model.step import Step
from headrace.runtime import logs
from headrace.task.codec import decode_options, readable_options, scrub
from headrace.task.journal import Journal, Suspension

if TYPE_CHECKING:
    from headrace.task.call import JobCall
    from headrace.task.group import CurrentGroup
    from headrace.task.handle import Handle
    from headrace.task.task import Home

R = TypeVar("R")


class NoCurrentJob(HeadraceError, RuntimeError):
    """`current_job()` was called outside a task that a worker runs."""

    code = "no_current_job"


class Running(Protocol):
    """A running attempt, as its executor provides it."""

    @property
    def job(self) -> Claimed: ...

    @property
    def worker(self) -> str:
        """host:pid of the worker."""
        ...

    @property
    def cancelled(self) -> bool: ...

    @property
    def deadline_at(self) -> datetime | None: ...

    async def complete(self, result: Any, tx: object) -> None: ...

    def complete_sync(self, result: Any, tx: object) -> None: ...

    def report(self, *, progress: float | None = None, note: str | None = None, line: str | None = None) -> None:
        """Take a report of the task, from any thread. The worker writes it soon, and before the attempt's end."""
        ...

    def secrets(self) -> Sequence[str]:
        """The values of the job's redacted fields, as they could appear in a text."""
        ...

    def steps(self) -> StepKeeper:
        """The steps of its job."""
        ...

    def successor(self) -> int:
        """The number of the next call that the attempt enqueues to run after it, from 1."""
        ...


class StepKeeper(Protocol):
    """Reads and writes the journal of a running attempt."""

    @property
    def journal(self) -> Journal:
        """Complete after `load` or `load_sync`. Calls may be numbered before."""
        ...

    @property
    def is_loaded(self) -> bool:
        """Whether the journal is complete."""
        ...

    def now(self) -> datetime:
        """The store's clock, about."""
        ...

    async def load(self) -> None:
        """Read what earlier attempts have finished, once."""
        ...

    def load_sync(self) -> None: ...

    async def add(self, step: Step, *, lazy: bool) -> None:
        """Store a finished step. Raises LeaseLost. `lazy`: with the next one that is not."""
        ...

    def add_sync(self, step: Step, *, lazy: bool) -> None: ...

    async def add_in(self, step: Step, tx: object) -> None:
        """Store a finished step inside the user's transaction. Raises LeaseLost."""
        ...

    def add_in_sync(self, step: Step, tx: object) -> None: ...

    def busy(self) -> AbstractContextManager[None]:
        """While a step runs, the attempt is not suspended."""
        ...

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        """The present state of gates."""
        ...

    def gates_sync(self, ids: Sequence[GateId]) -> list[Gate | None]: ...

    async def answer(self, gate: GateId, step: Step) -> bytes | None:
        """The value of a signalled gate. It is stored as a step, behind the value of `step`. None: no signal has come.

        The journal is read in the same call, unless it was. Raises LeaseLost.
        """
        ...

    def answer_sync(self, gate: GateId, step: Step) -> bytes | None: ...

    async def suspend(self, suspension: Suspension) -> None:
        """End the attempt as soon as no step runs. The job runs again when the wait is over."""
        ...

    def suspend_sync(self, suspension: Suspension) -> NoReturn:
        """The same in a thread or a process, by a BaseException through the task's code."""
        ...


_running: ContextVar[Running] = ContextVar("headrace_running")


def enter(running: Running) -> None:
    """Make `current_job()` return that attempt's job in this context. For executors."""
    _running.set(running)


class JobContext:
    """The job that the calling task runs for."""

    __slots__ = ("_running",)

    def __init__(self, running: Running) -> None:
        self._running = running

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task}, attempt {self.attempt}>"

    @property
    def id(self) -> JobId:
        """The id of the job."""
        return self._running.job.id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._running.job.task

    @property
    def queue(self) -> str:
        """The queue that the job is in."""
        return self._running.job.queue

    @property
    def tenant(self) -> str:
        """The tenant that the job belongs to. Empty: none."""
        job = self._running.job
        if job.tenant or job.options is None:
            return job.tenant
        return decode_options(job.options).tenant or ""  # in a queue with fair="off" it is no part of the lane

    @property
    def trace(self) -> str | None:
        """The trace of the producer, as the text of a W3C traceparent. None: the job carries none."""
        options = self._running.job.options
        return None if options is None else decode_options(options).trace

    @property
    def attempt(self) -> int:
        """The number of this claim of the job, from 1. Releases and snoozes count, too."""
        return self._running.job.attempt

    @property
    def failures(self) -> int:
        """Earlier attempts that failed."""
        return self._running.job.failures

    @property
    def enqueued_at(self) -> datetime:
        """When the job was stored, by the store's clock."""
        return self._running.job.enqueued_at

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's timeout ends, by this machine's clock. None: never."""
        return self._running.deadline_at

    @property
    def cancelled(self) -> bool:
        """Whether the attempt should end now: it was cancelled, took too long, lost its lease, or the worker stops.

        Only a task in a thread has to check this: async tasks get CancelledError, process tasks SIGTERM.
        """
        return self._running.cancelled

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Report how far the job is, from 0 to 1, and what it is doing: `await job.progress(0.4, "resizing")`.

        This is cheap: a worker writes the last state a few times per second at most, and before the job ends.
        """
        self._running.report(progress=_fraction(fraction), note=note)
        from asyncio import sleep  # Programs that only name the job in their log lines do without asyncio.

        # A task that only reports must let other tasks run, and must receive its cancellation.
        await sleep(0)

    def progress_sync(self, fraction: float, note: str | None = None) -> None:
        """The same for sync tasks, in threads and in processes."""
        self._running.report(progress=_fraction(fraction), note=note)

    def log(self, text: str) -> None:
        """Add a line to the job's own log, of which the last ones are kept; in tasks of every kind."""
        self._running.report(line=str(text))

    async def then(self, call: JobCall[R]) -> Handle[R]:
        """Enqueue a job that runs when this one is done: `await current_job().then(crawl.job(page + 1))`.

        What the call follows is enqueued with it and waits, too. An attempt that runs again does not enqueue a second one.
        """
        home, number = self._successor(call)
        put = await home.aput_after(call, self.id, number, self.tenant)
        return home.handle(call, put)

    def then_sync(self, call: JobCall[R]) -> Handle[R]:
        """The same for sync tasks, in threads and in processes."""
        home, number = self._successor(call)
        return home.handle(call, home.put_after(call, self.id, number, self.tenant))

    def _successor(self, call: JobCall[Any]) -> tuple[Home, int]:
        task = getattr(call, "task", None)
        if task is None:
            raise ConfigError(f"then takes task.job(…), not {call!r:.80}")
        return task.home, self._running.successor()

    @property
    def group(self) -> CurrentGroup:
        """The group that the job is a member of, for further members: `await current_job().group.aenqueue_many(…)`."""
        from headrace.task.group import CurrentGroup

        return CurrentGroup(self.id)

    async def complete(self, result: Any = None, *, tx: object) -> None:
        """End the job inside the caller's own transaction: its writes and the job's end commit together, or neither.

        Raises LeaseLost when another worker holds the job now: roll back.
        """
        await self._running.complete(result, tx)

    def complete_sync(self, result: Any = None, *, tx: object) -> None:
        """The same for sync tasks, which run in threads."""
        self._running.complete_sync(result, tx)


def _fraction(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"progress = {value!r}: a number from 0 to 1")
    return float(value)


def running() -> Running:
    """The attempt of the calling task. Raises NoCurrentJob outside a task."""
    attempt = _running.get(None)
    if attempt is None:
        raise NoCurrentJob("there is no current job here: this works inside a task that a worker runs")
    return attempt


def current_job() -> JobContext:
    """The job that the calling task runs for; NoCurrentJob outside a task."""
    return JobContext(running())


def _log_fields() -> dict[str, object]:
    """The fields of each line that a task logs; empty outside a task."""
    attempt = _running.get(None)
    if attempt is None:
        return {}
    job = JobContext(attempt)
    return {
        "job_id": str(job.id),
        "task": job.task,
        "attempt": job.attempt,
        "tenant": job.tenant,
        "queue": job.queue,
        "worker": attempt.worker,
        "trace_id": logs.trace_id(readable_options(attempt.job.options).trace),
    }


def _log_mask() -> Callable[[str], str] | None:
    """Masks the redacted values of the running job in a text. None: there are none."""
    attempt = _running.get(None)
    secrets = () if attempt is None else attempt.secrets()
    return (lambda text: scrub(text, secrets)) if secrets else None


logs.bind(_log_fields, _log_mask)


class JobLogHandler(logging.Handler):
    """Copies each line that a task logs to the job's own log, which is shown with the job: `logging.getLogger("shop").addHandler(…)`.

    Outside a task it does nothing. Values that the task redacts are masked.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Copy one line."""
        attempt = _running.get(None)
        # headrace's own lines are about jobs, too, and a line about a report would make another report.
        if attempt is None or record.name.partition(".")[0] == "headrace":
            return
        try:
            attempt.report(line=self.format(record))
        except Exception:  # noqa: BLE001  # a handler never fails the code that logs
            self.handleError(record)
