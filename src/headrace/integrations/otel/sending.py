"""The spans of calls that enqueue, in producers."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.integrations.otel.attempts import mark
from headrace.integrations.otel.contexts import ContinuedContext
from headrace.integrations.otel.metrics import SendMetrics, send_attributes
from headrace.integrations.otel.sampling import Sampling, new_span_id
from headrace.worker.outcome_of import kind_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.trace import Span

    from headrace.task.hooks import EnqueueCall

_propagator = TraceContextTextMapPropagator()


class SendTracer:
    """Surrounds each call that enqueues."""

    def __init__(self, sampling: Sampling, metrics: SendMetrics) -> None:
        self.sampling = sampling
        self.metrics = metrics

    def around(self, call: EnqueueCall) -> AbstractContextManager[str | None, None]:
        """One call. The value of the block is the trace that its jobs carry."""
        return _Sending(self, call)


class _Sending:
    """One call that enqueues. A call whose trace is not sampled has no span, and its jobs carry the trace all the same."""

    __slots__ = ("_began", "_call", "_span", "_token", "_tracer")

    def __init__(self, tracer: SendTracer, call: EnqueueCall) -> None:
        self._tracer = tracer
        self._call = call
        self._span: Span | None = None
        self._token: Any = None
        self._began = 0.0

    def __enter__(self) -> str | None:
        sampling = self._tracer.sampling
        rule = sampling.rule
        self._began = perf_counter()
        parent = trace.get_current_span().get_span_context()
        if parent.is_valid:
            drops = rule.drops_remote if parent.is_remote else rule.drops_local
            if (drops and not parent.trace_flags.sampled) or not rule.has_sdk:
                return _text_of(trace.get_current_span())
            return self._start()
        if not rule.has_sdk:
            return None
        drawn = sampling.draw()
        if drawn is None:
            return self._start()
        trace_id, is_sampled = drawn
        if is_sampled and sampling.root_ids is not None:
            with sampling.root_ids.begins(trace_id):
                return self._start()
        text = f"00-{trace_id:032x}-{new_span_id():016x}-00"
        # Code that the store's driver runs must not begin a trace of its own.
        self._token = context.attach(ContinuedContext(text))
        return text

    def _start(self) -> str | None:
        call = self._call
        span = self._span = self._tracer.sampling.tracer.start_span(
            "send" if call.task is None else f"send {call.task}",
            kind=SpanKind.PRODUCER,
            attributes=send_attributes(call.queue, call.task),
        )
        self._token = context.attach(trace.set_span_in_context(span))
        return _text_of(span)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            context.detach(self._token)
        call, failure = self._call, "" if error is None else kind_of(error)
        if (span := self._span) is not None:
            if error is not None and span.is_recording():
                mark(span, error, failure, hidden=None)
            if call.id is not None:
                span.set_attribute("messaging.message.id", str(call.id))
            elif call.task is None:
                span.set_attribute("messaging.batch.message_count", call.count)
            span.end()
        seconds = perf_counter() - self._began
        self._tracer.metrics.called(call.queue, call.task, call.count, failure, seconds)


def _text_of(span: Span) -> str | None:
    """The context of a span as the text of a traceparent. None: there is no SDK, and no trace."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")
