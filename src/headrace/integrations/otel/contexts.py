"""Contexts of traces. Those that are not sampled are made when code asks for the current span, which few tasks do."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.integrations.otel.sampling import new_span_id

_propagator = TraceContextTextMapPropagator()
D = TypeVar("D")


class LateContext(Context):
    """A context that is filled when it is read. Attaching one costs a job less than reading its trace.

    Every way to read a dict fills it first. `__iter__` makes `dict(context)` and `{**context}` use these methods, too.
    """

    __slots__ = ("_is_full",)

    def __init__(self) -> None:
        super().__init__()
        self._is_full = False

    def made(self) -> Context:
        """What the context holds."""
        raise NotImplementedError

    def _fill(self) -> None:
        if not self._is_full:
            # A context refuses changes, so the method of its base class is called.
            super(Context, self).update(self.made())
            self._is_full = True

    def get(self, key: str, default: D | None = None) -> object | D | None:
        self._fill()
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self._fill()
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._fill()
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return super().__iter__()

    def __len__(self) -> int:
        self._fill()
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        self._fill()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        self._fill()
        return super().__repr__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        self._fill()
        return super().keys()

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        self._fill()
        return super().values()

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        self._fill()
        return super().items()

    def copy(self) -> dict[str, object]:
        self._fill()
        return super().copy()


class ContinuedContext(LateContext):
    """Continues the trace that a job carries."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def made(self) -> Context:
        return _propagator.extract({"traceparent": self._text}, Context())


class SampledContext(Context):
    """Continues the trace that a job carries, for spans. It is filled at once, because spans read it several times."""

    __slots__ = ("links", "producer")

    def __init__(self, text: str) -> None:
        super().__init__(_propagator.extract({"traceparent": text}, Context()))
        self.producer = producer = trace.get_current_span(self).get_span_context()
        """The span that sent the job."""
        self.links = [Link(producer, {})] if producer.is_valid else []
        """All attempts of the job share the link to it."""


class RootContext(LateContext):
    """The first context of a trace that begins here. `is_sampled`: its first span begins the trace, and comes later."""

    __slots__ = ("is_sampled", "trace_id")

    def __init__(self, trace_id: int, *, is_sampled: bool) -> None:
        super().__init__()
        self.trace_id = trace_id
        self.is_sampled = is_sampled

    def made(self) -> Context:
        if self.is_sampled:
            return Context()
        span = SpanContext(self.trace_id, new_span_id(), is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT))
        return trace.set_span_in_context(NonRecordingSpan(span), Context())
