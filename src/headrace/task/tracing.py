"""What a tracing library provides for an app: the context and the span of each attempt, and a meter of their ends.

Most traces of a busy application are not sampled. The worker therefore asks before an attempt starts, once for all jobs of
one trace that are claimed together, and an attempt without a span runs as if there were no tracer. It also counts ends in
groups, because a call of a tracing library takes longer than a short job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

AttemptOutcome = Literal["done", "failed", "snoozed", "cancelled", "interrupted"]
"""How an attempt ended, as spans and metrics say it."""


class TraceScope(NamedTuple):
    """Where the attempts of one trace run."""

    enter: Callable[[], object]
    """Makes the trace current in the context of the caller."""
    has_span: bool
    """Each attempt runs inside a span."""


class AttemptTracer(Protocol):
    """Traces attempts."""

    def scope(self, options: bytes | None) -> TraceScope:
        """The scope of an attempt whose job has these options. Jobs with the same trace may share it."""
        ...

    def span(self) -> AbstractContextManager[object]:
        """The span of the attempt that runs in this context."""
        ...


class AttemptMeter(Protocol):
    """Counts how attempts ended."""

    def ended(
        self, queue: str, task: str, outcome: AttemptOutcome, error: str, count: int, seconds: Sequence[float]
    ) -> None:
        """So many attempts ended this way. `error`: the kind of failure; `seconds`: how long some of them took."""
        ...
