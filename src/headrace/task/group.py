"""Groups of jobs: `group(calls)`, which is enqueued with the job that follows it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from headrace.errors import ConfigError
from headrace.model.gate import MAX_LABEL, GateId
from headrace.model.job import JobId
from headrace.task.call import JobCall

if TYPE_CHECKING:
    from headrace.task.handle import Handle
    from headrace.task.results import Results
    from headrace.task.task import Home

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


class Gathered:
    """A group that is in the store, or that is about to be opened there."""

    id: GateId
    """The id of the group."""
    tenant: str = ""


class CurrentGroup:
    """The group of a running job, to which its task adds jobs. The group cannot be over before the running job has ended."""

    def __init__(self, job: JobId) -> None:
        self._job = job

    def enqueue_many(self, calls: Iterable[JobCall[R]]) -> Sequence[Handle[R]]:
        """Enqueue jobs as further members of the group."""
        home, calls = _home_of(calls)
        return () if home is None else home.put_members(calls, self._job)

    async def aenqueue_many(self, calls: Iterable[JobCall[R]]) -> Sequence[Handle[R]]:
        """Enqueue jobs as further members of the group."""
        home, calls = _home_of(calls)
        return () if home is None else await home.aput_members(calls, self._job)


def _home_of(calls: Iterable[JobCall[R]]) -> tuple[Home | None, Iterable[JobCall[R]]]:
    """The app of the calls, and the calls. None: there are no calls."""
    source = iter(calls)
    first = next(source, None)
    if first is None:
        return None, ()
    if not isinstance(first, JobCall) or first.task is None:
        raise ConfigError(f"enqueue_many takes task.job(…), not {first!r:.80}")
    return first.task.home, itertools.chain((first,), source)


class JobGroup(Generic[R_co]):
    """Jobs that are counted together. `then` makes the job that runs when all of them are done; a task awaits it."""

    __slots__ = ("calls", "label")

    def __init__(self, calls: Iterable[JobCall[R_co]], label: str = "") -> None:
        if not isinstance(calls, Iterable):
            raise ConfigError(f"group takes several task.job(…), not {calls!r:.80}")
        self.calls: tuple[JobCall[R_co], ...] = tuple(calls)
        """The jobs, in the order of their results."""
        for call in self.calls:
            if not isinstance(call, JobCall):
                raise ConfigError(f"group takes task.job(…), not {call!r:.80}")
        if len({id(call) for call in self.calls}) < len(self.calls):
            raise ConfigError(
                "a call is in this group twice, and one call is one job: make a call for each job, group(task.job(n) for n in …)"
            )
        self.label = check_label(label)
        """What people see. Empty: the group is not listed."""

    @property
    def out(self) -> Results[R_co]:
        """Stands for the results of all jobs, in their order, as an argument of another job."""
        from headrace.task.links import Out

        return cast("Results[R_co]", Out(self))

    @overload
    def then(
        self: JobGroup[R],
        task: Callable[Concatenate[Results[R], P], Coroutine[Any, Any, S]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobCall[S]: ...
    @overload
    def then(
        self: JobGroup[R], task: Callable[Concatenate[Results[R], P], JobCall[S]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobCall[S]: ...
    @overload
    def then(
        self: JobGroup[R], task: Callable[Concatenate[Results[R], P], S], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobCall[S]: ...
    def then(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobCall[Any]:
        """The job that runs when all jobs are done, with their results as its first argument: `group(calls).then(add_up)`.

        `task` is a task, or `task.using(…).job`. Enqueue the answer with `app.enqueue`.
        """
        from headrace.task.links import call_after

        return call_after(self.out, task, args, kwargs)

    def __await__(self) -> Generator[Any, None, Results[R_co]]:
        """`counts = await group(count.job(page) for page in pages)` inside a task: run them as children.

        The task gives its slot back until all are done. Raises JobDead or JobCancelled as soon as one has ended so.
        """
        return self._results().__await__()

    @property
    def _wait_name(self) -> str:
        return f"group {self.label}" if self.label else "group"

    async def _results(self) -> Results[R_co]:
        from headrace.task.children import ChildWait
        from headrace.task.results import done_results

        results = await ChildWait(self.calls, self._wait_name).results() if self.calls else []
        return done_results(self.calls, results)

    def wait_sync(self) -> Results[R_co]:
        """`await group(calls)` for sync tasks, in threads and in processes: run them as children, and give their results.

        While they run, the task has no slot: a BaseException goes through its code, and it runs again later.
        """
        from headrace.task.children import ChildWait
        from headrace.task.results import done_results

        results = ChildWait(self.calls, self._wait_name).results_sync() if self.calls else []
        return done_results(self.calls, results)

    def __repr__(self) -> str:
        return f"<group of {len(self.calls):,} jobs>"


def group(calls: Iterable[JobCall[R]], label: str = "") -> JobGroup[R]:
    """Jobs that are counted together: `group(count_words.job(page) for page in pages).then(add_up)`.

    They are enqueued with the job that follows them, at most 5,000 in one call. `app.open_group` has no such limit.
    Inside a task, `counts = await group(calls)` runs them as children.
    `label`: people see the group by this name.
    """
    return JobGroup(calls, label)


def check_label(label: object, *, needed: bool = False) -> str:
    """The label of a group, or a ConfigError."""
    if (
        not isinstance(label, str)
        or len(label) > MAX_LABEL
        or not label.isprintable()
        or (needed and not label.strip())
    ):
        least = 1 if needed else 0
        raise ConfigError(f"label = {label!r:.80}: {least} to {MAX_LABEL} printable characters, such as import 7")
    return label
