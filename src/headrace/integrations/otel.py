"""OpenTelemetry: a span for each call that enqueues, a span for each attempt that continues its trace, and metrics.

Only the API of OpenTelemetry is used. Without an SDK the calls do nothing. Arguments and results never become
attributes. In messages and tracebacks of errors, values that the task redacts are masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace import __version__
from headrace.errors import ConfigError
from headrace.integrations.masking import hidden_values
from headrace.model.outcome import Cancel, Snooze
from headrace.task.codec import scrub
from headrace.task.context import running
from headrace.task.journal import Suspended
from headrace.worker.outcome_of import MAX_MESSAGE, MAX_TRACEBACK, bounded, describe, kind_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from headrace.app import Headrace
    from headrace.task.context import JobContext
    from headrace.task.hooks import AsyncCall, EnqueueCall, SyncCall

_NAME = "headrace"
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Seconds, as the conventions for messaging advise."""
_SLACK = timedelta(seconds=1)
_FOLLOWS = "remoteParentNotSampled:AlwaysOffSampler"
"""Part of the description of a sampler that drops what a remote parent has not sampled."""
_DONE: Mapping[str, AttributeValue] = {"headrace.outcome": "done"}
_propagator = TraceContextTextMapPropagator()
_instrumented: WeakSet[Headrace] = WeakSet()


def instrument(
    app: Headrace, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and measure what the app enqueues and what its workers run: `instrument(app)`, once, beside the app.

    Call it where the app is declared, before other middleware, so that every process which imports the app has it. None: the
    global provider of OpenTelemetry.
    """
    if app in _instrumented:
        raise ConfigError("the app is instrumented already: call otel.instrument(app) once")
    _instrumented.add(app)
    tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
    meter = metrics.get_meter(_NAME, __version__, meter_provider)
    producer, consumer = _Producer(tracer, meter), _Consumer(app, tracer, meter, tracer_provider)
    app.on_enqueue(producer.around)
    app.middleware(consumer.around_async)
    app.middleware(consumer.around_sync)


class _Producer:
    """The spans and the metrics of calls that enqueue."""

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of the calls that enqueue.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Jobs that the store has accepted."
        )

    def around(self, call: EnqueueCall) -> Iterator[str | None]:
        common: dict[str, AttributeValue] = {
            "messaging.system": "headrace",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
        }
        if call.task is not None and call.queue is not None:
            common |= {"messaging.destination.name": call.queue, "headrace.task": call.task}
        began = perf_counter()
        with self._tracer.start_as_current_span(
            "send" if call.task is None else f"send {call.task}",
            kind=SpanKind.PRODUCER,
            attributes=common,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            measured = common
            try:
                yield _text_of(span)
            except BaseException as error:
                measured = common | {"error.type": kind_of(error)}
                if span.is_recording():
                    _mark(span, error, kind_of(error), hidden=None)
                raise
            finally:
                if call.id is not None:
                    span.set_attribute("messaging.message.id", str(call.id))
                elif call.task is None:
                    span.set_attribute("messaging.batch.message_count", call.count)
                self._duration.record(perf_counter() - began, measured)
                if call.count:
                    self._sent.add(call.count, common)


class _Consumer:
    """The spans and the metrics of attempts."""

    def __init__(self, app: Headrace, tracer: Tracer, meter: Meter, provider: TracerProvider | None) -> None:
        self._app = app
        self._tracer = tracer
        self._provider = provider
        self._drops: bool | None = None
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of attempts.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Attempts that workers have begun."
        )

    async def around_async(self, job: JobContext, call: AsyncCall) -> Any:
        if (parent := self._unsampled(job)) is None:
            with self._attempt(job):
                return await call()
        common = _common(job)
        self._consumed.add(1, common)
        began, token, outcome = perf_counter(), context.attach(parent), _DONE
        try:
            return await call()
        except BaseException as error:
            outcome = _outcome(job, error)
            raise
        finally:
            context.detach(token)
            self._duration.record(perf_counter() - began, {**common, **outcome})

    def around_sync(self, job: JobContext, call: SyncCall) -> Any:
        if (parent := self._unsampled(job)) is None:
            with self._attempt(job):
                return call()
        common = _common(job)
        self._consumed.add(1, common)
        began, token, outcome = perf_counter(), context.attach(parent), _DONE
        try:
            return call()
        except BaseException as error:
            outcome = _outcome(job, error)
            raise
        finally:
            context.detach(token)
            self._duration.record(perf_counter() - began, {**common, **outcome})

    def _unsampled(self, job: JobContext) -> Context | None:
        """The context of an attempt that needs no span, because the trace of its producer is not sampled.

        Most traces of a busy application are not sampled, and a span that the SDK drops costs ten times as much as this.
        """
        if (text := job.trace) is None or not self._drops_unsampled():
            return None
        parent, span_context = _continued(text)
        return None if span_context.trace_flags.sampled or not span_context.is_valid else parent

    def _drops_unsampled(self) -> bool:
        """Whether the sampler follows a remote parent that is not sampled, as the default sampler of the SDK does."""
        if self._drops is None:
            sampler: Any = getattr(self._provider or trace.get_tracer_provider(), "sampler", None)
            if sampler is None:
                return False  # There is no SDK, or not yet.
            self._drops = _FOLLOWS in str(sampler.get_description())
        return self._drops

    @contextmanager
    def _attempt(self, job: JobContext) -> Generator[None]:
        common = _common(job)
        of_job: dict[str, AttributeValue] = {
            "messaging.message.id": str(job.id),
            "headrace.attempt": job.attempt,
        }
        if job.tenant:
            of_job["headrace.tenant"] = job.tenant
        # A job without a trace begins one. It does not continue what runs in this context by chance.
        parent = context.Context()
        links: list[Link] = []
        if job.trace is not None:
            parent, span_context = _continued(job.trace)
            links = [Link(span_context)]
        outcome = _DONE
        self._consumed.add(1, common)
        began = perf_counter()
        with self._tracer.start_as_current_span(
            f"process {job.task}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=common | of_job,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                outcome = _outcome(job, error)
                if "error.type" in outcome and span.is_recording():
                    _mark(span, error, str(outcome["error.type"]), hidden_values(self._app, running().job))
                raise
            finally:
                span.set_attribute("headrace.outcome", outcome["headrace.outcome"])
                self._duration.record(perf_counter() - began, {**common, **outcome})


def _common(job: JobContext) -> dict[str, AttributeValue]:
    """The attributes that the span and the metrics of an attempt share."""
    return {
        "messaging.system": "headrace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "headrace.task": job.task,
    }


@lru_cache(maxsize=1024)
def _continued(text: str) -> tuple[Context, SpanContext]:
    """The context that continues a trace. Jobs of one call share it, so it is read once."""
    parent = _propagator.extract({"traceparent": text}, context.Context())
    return parent, trace.get_current_span(parent).get_span_context()


def _text_of(span: Span) -> str | None:
    """The context of a span as the text of a traceparent. None: there is no SDK, and no trace."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


def _outcome(job: JobContext, error: BaseException) -> Mapping[str, AttributeValue]:
    """What an attempt that raised counts as. The worker decides what follows."""
    match error:
        case Snooze() | Suspended():
            return {"headrace.outcome": "snoozed"}
        case Cancel():
            return {"headrace.outcome": "cancelled"}
        case SystemExit() | KeyboardInterrupt():
            pass
        case asyncio.CancelledError() if not job.cancelled:
            pass
        case Exception():
            pass
        case _ if _is_late(job):
            return {"headrace.outcome": "failed", "error.type": "timeout"}
        case _:
            return {"headrace.outcome": "interrupted"}
    return {"headrace.outcome": "failed", "error.type": kind_of(error)}


def _is_late(job: JobContext) -> bool:
    """Whether its timeout is the reason for the interruption. The worker's time begins before that of its child."""
    return job.deadline is not None and job.deadline <= datetime.now(UTC) + _SLACK


def _mark(span: Span, error: BaseException, kind: str, hidden: Collection[str] | None = ()) -> None:
    """Say that it failed, and where. `hidden`: values to mask. None: they are not known, so the event has no text."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute("error.type", kind)
    event: dict[str, AttributeValue] = {"exception.type": kind_of(error)}
    if hidden is not None:
        message, stack = describe(error)
        event["exception.message"] = bounded(scrub(message, hidden), MAX_MESSAGE)
        event["exception.stacktrace"] = bounded(scrub(stack, hidden), MAX_TRACEBACK)
    span.add_event("exception", event)
