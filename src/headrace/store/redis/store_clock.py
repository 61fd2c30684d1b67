"""The store's time: the server's clock, or the clock that a test gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from time import monotonic
from typing import Final

from headrace.model.clock import Clock
from headrace.store.redis.client.client import Client
from headrace.store.redis.element import from_us, to_us

_FRESH: Final = 30.0
"""Seconds for which the server's last answer is used; then the store asks for the time again."""
_SELDOM: Final = 60.0
"""Seconds after which `after_refresh` is due in a process that hears the time without asking for it."""


class StoreClock:
    """Keeps what the server last said, and adds what has passed since, so that few calls ask for the time."""

    def __init__(self, client: Client, clock: Clock | None) -> None:
        self._client = client
        self.clock = clock
        """Replaces the server's clock in tests."""
        self._server_us = 0
        self._measured = float("-inf")
        self._acted = float("-inf")
        """When the functions of `after_refresh` were called last, on the monotonic clock."""
        self._after: list[Callable[[], Awaitable[None]]] = []

    def after_refresh(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run this after each refresh. What a process knows of the server ages together with its time."""
        self._after.append(act)

    @property
    def given(self) -> str:
        """The time as scripts take it: nothing stands for the server's own."""
        return "" if self.clock is None else str(to_us(self.clock.now()))

    async def now_us(self) -> int:
        """Microseconds since 1970, without a call to the server in most cases."""
        if self.clock is not None:
            return to_us(self.clock.now())
        passed = monotonic() - self._measured
        if passed > _FRESH:
            await self.refresh()
            passed = 0.0
        return self._server_us + int(passed * 1_000_000)

    def known_us(self) -> int | None:
        """The same from any thread; None: the store must ask the server first."""
        if self.clock is not None:
            return to_us(self.clock.now())
        passed = monotonic() - self._measured
        return None if passed > _FRESH else self._server_us + int(passed * 1_000_000)

    async def refresh(self) -> None:
        """Ask the server for the time."""
        seconds, micro = await self._client.wire.time(self._client.keys.queues)
        # A thread that reads both in between must take the time for stale.
        self._measured = float("-inf")
        self._server_us = int(seconds) * 1_000_000 + int(micro)
        self._measured = monotonic()
        await self._act()

    async def hear(self, server_us: int) -> None:
        """An answer that has just come said the time. So a process with a worker rarely has to ask for it."""
        self._measured = float("-inf")
        self._server_us = server_us
        self._measured = monotonic()
        if self._measured - self._acted > _SELDOM:
            await self._act()

    async def _act(self) -> None:
        self._acted = monotonic()
        for act in self._after:
            await act()

    async def now(self) -> datetime:
        if self.clock is not None:
            return self.clock.now()
        await self.refresh()
        return from_us(self._server_us)
