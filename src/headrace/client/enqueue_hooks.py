"""Calls the app's `on_enqueue` hooks around one call that enqueues, and puts their trace into its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.job import JobId, NewJob
from headrace.task.codec import traced
from headrace.task.hooks import EnqueueCall, EnqueueHook, label_of
from headrace.task.job_options import is_trace


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

    def traced_jobs(self, jobs: list[NewJob]) -> list[NewJob]:
        """The same for jobs of a bulk call."""
        if (trace := self._trace) is None:
            return jobs
        # Most jobs of one call have the same options, so the last encoding is kept.
        plain, with_trace = None, traced(None, trace)
        copies: list[NewJob] = []
        for job in jobs:
            if job.options != plain:
                plain, with_trace = job.options, traced(job.options, trace)
            # `replace` takes three times as long.
            copies.append(NewJob(job.task, job.payload, job.lane, job.due, job.key, with_trace, job.unique, job.wait))
        return copies
