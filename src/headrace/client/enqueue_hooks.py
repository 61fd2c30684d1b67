"""Calls the app's `on_enqueue` hooks around one call that enqueues, and puts their trace into its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from headrace.client.bulk import check_calls
from headrace.errors import ConfigError
from headrace.model.job import JobId, NewJob
from headrace.task.codec import traced
from headrace.task.hooks import EnqueueCall, EnqueueHook, label_of
from headrace.task.job_options import is_trace
from headrace.task.task import JobCall

R = TypeVar("R")


class Enqueueing:
    """One call that enqueues, inside the hooks. The first hook is the outermost."""

    def __init__(self, hooks: Sequence[EnqueueHook], job: NewJob | None = None) -> None:
        """`job`: the only job of the call. None: a bulk call."""
        self._hooks = hooks
        self._stack = ExitStack()
        self._trace: str | None = None
        self._call = EnqueueCall() if job is None else EnqueueCall(task=job.task, queue=job.lane.queue)

    def __enter__(self) -> Self:
        with self._stack as stack:
            for hook in self._hooks:
                trace = stack.enter_context(hook(self._call))
                if trace is None:
                    continue
                if not is_trace(trace):
                    raise ConfigError(f"{label_of('on_enqueue', hook)} yields {trace!r:.80}: a traceparent, or None")
                self._trace = trace
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A hook cannot swallow an error of the store, because the caller would have no job.
        self._stack.__exit__(kind, error, traceback)

    def stored(self, count: int, id: JobId | None = None) -> None:
        """Tell the hooks what the store has accepted."""
        self._call.count, self._call.id = count, id

    def traced(self, job: NewJob) -> NewJob:
        """The job with the trace of the hooks, if they gave one."""
        return job if self._trace is None else replace(job, options=traced(job.options, self._trace))

    def traced_calls(self, calls: Iterable[JobCall[R]]) -> Iterable[JobCall[R]]:
        """The same for the jobs of a bulk call, one after the other."""
        return calls if self._trace is None else self._each_traced(calls, self._trace)

    def _each_traced(self, calls: Iterable[JobCall[R]], trace: str) -> Iterator[JobCall[R]]:
        # Most jobs of one call have the same options, so the last encoding is kept.
        plain, with_trace = None, traced(None, trace)
        for call in calls:
            check_calls((call,))
            if call.job.options != plain:
                plain, with_trace = call.job.options, traced(call.job.options, trace)
            yield replace(call, job=replace(call.job, options=with_trace))
