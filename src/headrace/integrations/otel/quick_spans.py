"""Spans of attempts that no code looks at while they run, which is what most short tasks do.

Most of what a span of the SDK costs pays for changes: locks, limits, copies. A span whose context nothing reads is not
changed, so it is made when the attempt has ended, as the read-only span that processors get from the SDK. What the SDK puts
into such a span is taken from one that it made itself for the same task and queue. As soon as code reads the context, for
example the id of the trace for a log line, the SDK makes the span, with the time at which the attempt began.
"""

from __future__ import annotations

import os
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind

from headrace.integrations.otel.contexts import LateContext, SampledContext
from headrace.integrations.otel.metrics import process_attributes
from headrace.task.codec import readable_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from headrace.integrations.otel.metrics import Attributes
    from headrace.integrations.otel.sampling import Sampling
    from headrace.model.job import Claimed

_COUNTS_SPANS: Final = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"
"""With this variable the SDK counts the spans that it makes."""
_LONGEST: Final = 36
"""Longer tenants may exceed a limit of the SDK. The id of a job has this length, and no limit has shortened that one."""
_MOST: Final = 1024
"""Models that are kept, because an app may have any number of queues."""
_making = Lock()
"""Held while a span is made, because several threads may read the context of one attempt."""

_Kind = tuple[str, str, bool, int]
"""Queue, task, whether there is a tenant, and the flags of the trace."""


class SpanModel(NamedTuple):
    """What the spans of one kind have in common."""

    name: str
    attributes: Attributes
    """Those of its queue and its task."""
    flags: Any
    scope: Any
    make: Callable[..., Any]
    """The class of read-only spans."""


def attributes_of(job: Claimed) -> Attributes:
    """The attributes with which the span of an attempt begins."""
    return _with_job(process_attributes(job.queue, job.task), job, _tenant(job))


def _with_job(attributes: Attributes, job: Claimed, tenant: str) -> Attributes:
    attributes["messaging.message.id"] = str(job.id)
    attributes["headrace.attempt"] = job.attempt
    if tenant:
        attributes["headrace.tenant"] = tenant
    return attributes


def _tenant(job: Claimed) -> str:
    return job.tenant or readable_options(job.options).tenant or ""


class QuickSpans:
    """Makes spans after their attempts, where the provider is the SDK's own and only its exporters get the spans."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._models: dict[_Kind, SpanModel] = {}
        self._processors: tuple[object, ...] | None = None
        """The processors that were looked at last. The SDK has another tuple when one is added."""
        self._unaware = False
        """None of them does anything when a span starts."""

    def model(self, job: Claimed, here: Context) -> SpanModel | None:
        """The model of this attempt's span. None: the SDK has to make it."""
        if type(here) is not SampledContext or len(tenant := _tenant(job)) > _LONGEST:
            return None
        model = self._models.get((job.queue, job.task, bool(tenant), here.producer.trace_flags))
        return model if model is not None and self._is_unaware() else None

    def learn(self, job: Claimed, here: Context, span: Any) -> None:
        """Take a model from the span that the SDK made for this attempt, if nothing has changed it."""
        if type(here) is not SampledContext or not self._sampling.rule.keeps_remote or not self._is_unaware():
            return
        from opentelemetry.sdk.trace import ReadableSpan

        parent = here.producer
        place = span.context if isinstance(span, ReadableSpan) else None
        if place is None:
            return
        as_given = (
            span.parent == parent
            and place.trace_state == parent.trace_state
            and dict(span.attributes or {}) == attributes_of(job) | {"headrace.outcome": "done"}
            and [link.context for link in span.links] == [parent]
            and span.name == f"process {job.task}"
            and span.status.is_unset
            and not span.events
        )
        if not as_given:
            return
        model = SpanModel(
            span.name,
            process_attributes(job.queue, job.task),
            place.trace_flags,
            span.instrumentation_scope,
            ReadableSpan,
        )
        try:
            self._finished(model, job, here, self.place(model, parent), time_ns())
        except Exception:  # noqa: BLE001 - a version of the SDK that makes its spans otherwise goes on making them
            return
        if len(self._models) >= _MOST:
            self._models.clear()
        self._models[job.queue, job.task, bool(_tenant(job)), parent.trace_flags] = model

    def _is_unaware(self) -> bool:
        processor: Any = getattr(self._sampling.tracer, "span_processor", None)
        processors: tuple[object, ...] | None = getattr(processor, "_span_processors", None)
        if processors is not self._processors:
            self._processors = processors
            self._unaware = _COUNTS_SPANS not in os.environ and _are_unaware(
                self._sampling.tracer, processor, processors
            )
        return self._unaware

    def place(self, model: SpanModel, parent: SpanContext) -> SpanContext:
        """The context of a new span."""
        tracer: Any = self._sampling.tracer
        # Arguments by name would take longer.
        return SpanContext(
            parent.trace_id, tracer.id_generator.generate_span_id(), False, model.flags, parent.trace_state
        )

    def end(self, model: SpanModel, job: Claimed, here: SampledContext, span: SpanContext, began: int) -> None:
        """Hand the span of a success to the processors."""
        tracer: Any = self._sampling.tracer
        tracer.span_processor.on_end(self._finished(model, job, here, span, began))

    def _finished(self, model: SpanModel, job: Claimed, here: SampledContext, span: SpanContext, began: int) -> Any:
        """The read-only span of an attempt that has succeeded now."""
        tracer: Any = self._sampling.tracer
        attributes = _with_job(model.attributes.copy(), job, _tenant(job))
        attributes["headrace.outcome"] = "done"
        return model.make(
            model.name,
            span,
            here.producer,
            tracer.resource,
            attributes,
            (),
            here.links,
            SpanKind.CONSUMER,
            start_time=began,
            end_time=time_ns(),
            instrumentation_scope=model.scope,
        )


def _are_unaware(tracer: object, processor: object, processors: tuple[object, ...] | None) -> bool:
    """Whether these are the SDK's own classes, whose processors only look at spans that have ended."""
    try:
        from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor, Tracer
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    except ImportError:
        return False
    if type(tracer) is not Tracer or type(processor) is not SynchronousMultiSpanProcessor or processors is None:
        return False
    known: tuple[Any, ...] = (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
    starts = {kind.on_start for kind in known}
    endings = {getattr(kind, "_on_ending", None) for kind in known}
    kinds: list[Any] = [type(instance) for instance in processors]
    return all(kind.on_start in starts and getattr(kind, "_on_ending", None) in endings for kind in kinds)


class UnseenContext(LateContext):
    """The context inside the span of one attempt. The span is made when code reads the context, or else at its end."""

    __slots__ = ("_began", "_here", "_over", "_start", "span")

    def __init__(self, here: SampledContext, start: Callable[[Context, int], Span]) -> None:
        """`start` makes the SDK start the span."""
        super().__init__()
        self._here = here
        self._start = start
        self._over: SpanContext | None = None
        self._began = time_ns()
        self.span: Span | None = None
        """None: no code has read the context."""

    def made(self) -> Context:
        with _making:
            if self._over is not None:
                # A task of the event loop, or a thread, that has outlived the attempt.
                return trace.set_span_in_context(NonRecordingSpan(self._over), self._here)
            return trace.set_span_in_context(self.seen(), self._here)

    def seen(self) -> Span:
        """The SDK's span."""
        if self.span is None:
            # What the SDK logs meanwhile must not ask for this span.
            token = context.attach(self._here)
            try:
                self.span = self._start(self._here, self._began)
            finally:
                context.detach(token)
        return self.span

    def end(self, quick: QuickSpans, model: SpanModel, job: Claimed) -> None:
        """End the span of a success."""
        with _making:
            if self.span is None:
                self._over = quick.place(model, self._here.producer)
        if self._over is not None:
            quick.end(model, job, self._here, self._over, self._began)
