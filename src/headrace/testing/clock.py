"""A clock for tests. Its time changes only by `advance`."""

from __future__ import annotations

import asyncio
import heapq
from datetime import UTC, datetime, timedelta


class FakeClock:
    """Implements `headrace.model.clock.Clock`; time passes only by `advance`."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
        self._monotonic = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._naps = 0

    def now(self) -> datetime:
        """The time of day, with UTC as its time zone."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since some moment. They never go back."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the time by so many seconds."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._naps += 1
        awake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._naps, awake))
        await awake

    @property
    def sleeping(self) -> int:
        """How many coroutines sleep right now."""
        return sum(not awake.done() for _, _, awake in self._sleepers)

    def advance(self, by: timedelta | float) -> None:
        """Advance the time (seconds or a timedelta) and wake sleepers whose time is over."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        self._now += step
        self._monotonic += step.total_seconds()
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            awake = heapq.heappop(self._sleepers)[2]
            if not awake.done():
                awake.set_result(None)
