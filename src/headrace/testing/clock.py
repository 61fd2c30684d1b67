"""A clock for tests. Its time changes only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from headrace.errors import ConfigError
from headrace.model import duration


class FakeClock:
    """Implements `headrace.model.clock.Clock`; time passes only by `move`, `set` and `advance`.

    ```py
    clock.move("2h")
    clock.set(datetime(2027, 1, 1, tzinfo=UTC))
    ```

    Delays, retries, schedules, leases and expirations of jobs follow the clock. Moving it runs nothing: the next `drain`
    runs what has become due.
    """

    def __init__(self, start: datetime | None = None) -> None:
        """`start` needs a time zone. Every clock without one begins at the same time."""
        self._now = start or datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
        self._monotonic = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._naps = 0
        self.before_move: list[Callable[[], None]] = []
        """What is called before the time changes."""

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

    def move(self, by: duration.Duration | float) -> datetime:
        """Let time pass: `"2h"`, a timedelta, or seconds. Returns the new time."""
        step = duration.given_or_seconds(by, name="clock.move")
        for call in self.before_move:
            call()
        self.advance(step)
        return self._now

    def set(self, to: datetime) -> datetime:
        """Let time pass until this moment, which needs a time zone and must not lie in the past."""
        duration.check_aware(to, name="clock.set")
        if to < self._now:
            raise ConfigError(
                f"clock.set({to.isoformat()}): the clock is at {self._now.isoformat()}, and never goes back"
            )
        return self.move(to - self._now)

    def advance(self, by: timedelta | float) -> None:
        """Advance the time (seconds or a timedelta) and wake sleepers whose time is over."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        self._now += step
        self._monotonic += step.total_seconds()
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            awake = heapq.heappop(self._sleepers)[2]
            if not awake.done():
                awake.set_result(None)
