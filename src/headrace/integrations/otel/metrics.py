"""The metrics of producers and workers. Counts are kept here and read when they are exported, so that counting is cheap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import sample
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Observation

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter
    from opentelemetry.util.types import AttributeValue

    from headrace.task.tracing import AttemptOutcome

Attributes = dict[str, "AttributeValue"]
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Seconds, as the conventions for messaging advise."""
_MOST_DURATIONS: Final = 100
"""Durations of attempts that the histogram gets per second. One of them costs the SDK more than a short job costs headrace."""
_BURST: Final = 200
"""Durations that it gets at once after a quiet time."""


def send_attributes(queue: str | None, task: str | None) -> Attributes:
    """The attributes that the span and the metrics of a call share. None: a bulk call."""
    common: Attributes = {
        "messaging.system": "headrace",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    if queue is not None and task is not None:
        common |= {"messaging.destination.name": queue, "headrace.task": task}
    return common


def process_attributes(queue: str, task: str) -> Attributes:
    """The attributes that the span and the metrics of an attempt share."""
    return {
        "messaging.system": "headrace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "headrace.task": task,
    }


class SendMetrics:
    """Calls that enqueue."""

    def __init__(self, meter: Meter) -> None:
        self._counts: dict[tuple[str | None, str | None], int] = {}
        self._lock = Lock()
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of the calls that enqueue.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        meter.create_observable_counter(
            "messaging.client.sent.messages",
            [self._sent],
            unit="{message}",
            description="Jobs that the store has accepted.",
        )

    def called(self, queue: str | None, task: str | None, count: int, error: str, seconds: float) -> None:
        """A call has ended. `count`: the jobs that the store has accepted; `error`: the kind of failure."""
        attributes = send_attributes(queue, task)
        self._duration.record(seconds, attributes | {"error.type": error} if error else attributes)
        if count:
            with self._lock:
                self._counts[queue, task] = self._counts.get((queue, task), 0) + count

    def _sent(self, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            counts = list(self._counts.items())
        return [Observation(count, send_attributes(*key)) for key, count in counts]


class AttemptMetrics:
    """Attempts, as workers count them."""

    def __init__(self, meter: Meter) -> None:
        self._counts: dict[tuple[str, str, str, str], int] = {}
        self._lock = Lock()
        self._room = float(_BURST)
        """Durations that the histogram may get now."""
        self._looked = monotonic()
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of attempts. Of many in one second, some are measured.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        meter.create_observable_counter(
            "messaging.client.consumed.messages",
            [self._consumed],
            unit="{message}",
            description="Attempts that have ended.",
        )

    def ended(
        self, queue: str, task: str, outcome: AttemptOutcome, error: str, count: int, seconds: Sequence[float]
    ) -> None:
        """So many attempts ended this way, of which some took so many seconds."""
        key = queue, task, outcome, error
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + count
            room = self._admit(len(seconds))
        attributes = _of_end(*key)
        for duration in seconds if room == len(seconds) else sample(seconds, room):
            self._duration.record(duration, attributes)

    def _admit(self, count: int) -> int:
        """How many of these durations the histogram gets: at least one, so that no task and no kind of failure is missing."""
        now = monotonic()
        self._room = min(_BURST, self._room + _MOST_DURATIONS * (now - self._looked))
        self._looked = now
        admitted = min(count, max(1, int(self._room)))
        self._room = max(0.0, self._room - admitted)
        return admitted

    def _consumed(self, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            counts = list(self._counts.items())
        return [Observation(count, _of_end(*key)) for key, count in counts]


def _of_end(queue: str, task: str, outcome: str, error: str) -> Attributes:
    attributes = process_attributes(queue, task) | {"headrace.outcome": outcome}
    return attributes | {"error.type": error} if error else attributes
