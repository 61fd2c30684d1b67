"""How many calls of the store a worker makes, and how long they take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Iterator
from time import monotonic
from typing import Final, Literal, TypeVar

from headrace.supervisor.series import CALL_SECONDS, CALLS, Series

StoreCall = Literal["claim", "settle", "heartbeat", "promote", "reap", "prune", "report", "history"]
T = TypeVar("T")


class _CallTimes:
    """The calls of one kind."""

    __slots__ = ("counts", "started", "sum")

    def __init__(self) -> None:
        self.started = 0
        """Calls that began, also those without an answer."""
        self.sum = 0.0
        self.counts = [0] * (len(CALL_SECONDS) + 1)


class StoreCalls:
    """Counts and measures calls. One call is for many jobs, so that a job costs nothing here."""

    __slots__ = ("_by_call", "batches", "settled")

    def __init__(self) -> None:
        self._by_call: Final[dict[StoreCall, _CallTimes]] = {}
        self.batches = 0
        """Settle calls that the store has answered."""
        self.settled = 0
        """Jobs of those calls."""

    async def timed(self, call: StoreCall, answer: Awaitable[T]) -> T:
        """Wait for the answer, and measure how long it takes. An error or a cancelled call counts, too."""
        times = self._by_call.get(call)
        if times is None:
            times = self._by_call[call] = _CallTimes()
        times.started += 1
        began = monotonic()
        try:
            return await answer
        finally:
            seconds = monotonic() - began
            times.sum += seconds
            times.counts[bisect_left(CALL_SECONDS, seconds)] += 1

    def started(self, call: StoreCall) -> int:
        """How many calls of this kind began."""
        times = self._by_call.get(call)
        return 0 if times is None else times.started

    def as_dict(self) -> dict[str, int]:
        """As `WorkerFigures` names them."""
        return {
            "claims": self.started("claim"),
            "settlements": self.started("settle"),
            "heartbeats": self.started("heartbeat"),
            "batches": self.batches,
            "settled": self.settled,
        }

    def series(self) -> Iterator[Series]:
        """The times by kind of call."""
        for call, times in self._by_call.items():
            yield Series(CALLS, (call,), times.sum, tuple(times.counts))
