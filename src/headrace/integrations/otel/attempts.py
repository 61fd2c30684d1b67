"""The spans of attempts, in workers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode

from headrace.integrations.masking import hidden_values
from headrace.integrations.otel.contexts import ContinuedContext, RootContext, SampledContext
from headrace.integrations.otel.quick_spans import QuickSpans, SpanModel, UnseenContext, attributes_of
from headrace.model.outcome import Cancel, Snooze
from headrace.task.codec import readable_options, scrub
from headrace.task.context import JobContext, running
from headrace.task.job_options import is_trace
from headrace.task.journal import Suspended
from headrace.task.tracing import AttemptOutcome, TraceScope
from headrace.worker.outcome_of import MAX_MESSAGE, MAX_TRACEBACK, bounded, describe, kind_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from headrace.app import Headrace
    from headrace.integrations.otel.sampling import Sampling
    from headrace.model.job import Claimed
    from headrace.task.context import Running

_SLACK = timedelta(seconds=1)
_NO_TRACE = TraceScope(partial(context.attach, Context()), has_span=False)
_NEW_TRACE = TraceScope(partial(context.attach, Context()), has_span=True)
"""A job without a trace begins one. It does not continue what runs in this context by chance."""


class Attempts:
    """Decides which attempts have a span, and makes it."""

    def __init__(self, app: Headrace, sampling: Sampling) -> None:
        self.app = app
        self.sampling = sampling
        self.quick = QuickSpans(sampling)

    def scope(self, options: bytes | None) -> TraceScope:
        """The trace of the job, or a new one."""
        text = readable_options(options).trace
        if text is None or not is_trace(text):
            return self._new_scope()
        return _scope_of(text, self.sampling.rule.drops_remote)

    def _new_scope(self) -> TraceScope:
        if not self.sampling.rule.has_sdk:
            return _NO_TRACE
        drawn = self.sampling.draw()
        if drawn is None:
            return _NEW_TRACE
        trace_id, is_sampled = drawn
        root = RootContext(trace_id, is_sampled=is_sampled)
        return TraceScope(partial(context.attach, root), has_span=is_sampled)

    def span(self) -> AbstractContextManager[object, None]:
        """The span of the current job's attempt, from here to the end of the block."""
        here, attempt = context.get_current(), running()
        model = self.quick.model(attempt.job, here)
        if model is not None and isinstance(here, SampledContext):
            return _QuickSpan(self, attempt, model, here)
        return _AttemptSpan(self, attempt, here)

    def start(self, job: Claimed, here: Context, began: int | None = None) -> Span:
        """Start the span of this job's attempt. `began`: when, in nanoseconds. None: now."""
        if self.sampling.root_ids is not None and isinstance(here, RootContext):
            with self.sampling.root_ids.begins(here.trace_id):
                return self._start(job, here, began)
        return self._start(job, here, began)

    def _start(self, job: Claimed, here: Context, began: int | None) -> Span:
        return self.sampling.tracer.start_span(
            f"process {job.task}",
            here,
            kind=SpanKind.CONSUMER,
            attributes=attributes_of(job),
            links=here.links if isinstance(here, SampledContext) else None,
            start_time=began,
        )

    def end(self, span: Span, error: BaseException | None) -> None:
        """End the span of the current job's attempt, which has raised that error."""
        outcome = "done"
        if error is not None:
            attempt = running()
            outcome, failure = _outcome(JobContext(attempt), error)
            if failure and span.is_recording():
                mark(span, error, failure, hidden_values(self.app, attempt.job))
        span.set_attribute("headrace.outcome", outcome)
        span.end()


class _AttemptSpan:
    """The span of one attempt. A class, because a generator would take several microseconds more."""

    __slots__ = ("_attempts", "_here", "_job", "_span", "_token")

    def __init__(self, attempts: Attempts, attempt: Running, here: Context) -> None:
        self._attempts = attempts
        self._job = attempt.job
        self._here = here

    def __enter__(self) -> None:
        self._span = self._attempts.start(self._job, self._here)
        self._token = context.attach(trace.set_span_in_context(self._span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        context.detach(self._token)
        self._attempts.end(self._span, error)
        if error is None:
            self._attempts.quick.learn(self._job, self._here, self._span)


class _QuickSpan:
    """The same where the span is mostly made when it is over."""

    __slots__ = ("_attempts", "_job", "_model", "_token", "_unseen")

    def __init__(self, attempts: Attempts, attempt: Running, model: SpanModel, here: SampledContext) -> None:
        self._attempts = attempts
        self._job = attempt.job
        self._model = model
        self._unseen = UnseenContext(here, partial(attempts.start, attempt.job))

    def __enter__(self) -> None:
        self._token = context.attach(self._unseen)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        context.detach(self._token)
        unseen = self._unseen
        if error is None:
            unseen.end(self._attempts.quick, self._model, self._job)
        else:
            unseen.made()
        if unseen.span is not None:
            self._attempts.end(unseen.span, error)


@lru_cache(maxsize=1024)
def _scope_of(text: str, drops_remote: bool) -> TraceScope:  # a part of the cache's key
    """The scope of a job with this trace. Jobs of one call share it."""
    has_span = bool(int(text[53:55], 16) & 1) or not drops_remote
    continued = SampledContext(text) if has_span else ContinuedContext(text)
    return TraceScope(partial(context.attach, continued), has_span=has_span)


def _outcome(job: JobContext, error: BaseException) -> tuple[AttemptOutcome, str]:
    """What an attempt that raised counts as, and its kind of failure. The worker decides what follows."""
    match error:
        case Snooze() | Suspended():
            return "snoozed", ""
        case Cancel():
            return "cancelled", ""
        case SystemExit() | KeyboardInterrupt():
            pass
        case asyncio.CancelledError() if not job.cancelled:
            pass
        case Exception():
            pass
        case _ if _is_late(job):
            return "failed", "timeout"
        case _:
            return "interrupted", ""
    return "failed", kind_of(error)


def _is_late(job: JobContext) -> bool:
    """Whether its timeout is the reason for the interruption. The worker's time begins before that of its child."""
    return job.deadline is not None and job.deadline <= datetime.now(UTC) + _SLACK


def mark(span: Span, error: BaseException, kind: str, hidden: Collection[str] | None = ()) -> None:
    """Say that it failed, and where. `hidden`: values to mask. None: they are not known, so the event has no text."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute("error.type", kind)
    event: dict[str, AttributeValue] = {"exception.type": kind_of(error)}
    if hidden is not None:
        message, stack = describe(error)
        event["exception.message"] = bounded(scrub(message, hidden), MAX_MESSAGE)
        event["exception.stacktrace"] = bounded(scrub(stack, hidden), MAX_TRACEBACK)
    span.add_event("exception", event)
