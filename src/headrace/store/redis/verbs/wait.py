"""Wait: until when a worker sleeps, and what becomes of the hint that wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from headrace.errors import HeadraceError, OutcomeUnknown, Unavailable
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.store_clock import StoreClock

_USE_WITHIN: Final = 0.1
"""Seconds within which a claim has to follow a hint; then another worker gets the hint."""
_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25
"""Seconds. Jobs that a claim may not take keep the marker up: without a pause, its worker would take it over and over."""
_LAST_WORDS: Final = 1.0


class Wait:
    """Sleeps on the markers of queues. Claims tell it what they passed over, because that decides the length of a sleep."""

    def __init__(self, client: Client, time: StoreClock) -> None:
        self._client, self._wire, self._keys, self._time = client, client.wire, client.keys, time
        self.opens_us: int | None = None
        """When the first of what the last claim passed over opens, by the store's clock."""
        self.pauses: dict[str, float] = {}
        """queue → seconds to leave its marker to others, where the last claim could not take what waits there."""
        self._taken: dict[str, None] = {}
        """Markers taken since the last claim."""
        self._idle: asyncio.TimerHandle | None = None
        self._handing: asyncio.Task[None] | None = None

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        if not queues or timeout <= 0:
            return False
        timeout, opened = await self.until(timeout)
        if timeout <= 0:
            return True
        pause = max((self.pauses.get(queue, 0.0) for queue in queues), default=0.0)
        if pause:
            await asyncio.sleep(min(pause, timeout))
            timeout -= pause
            if timeout <= 0:
                return opened
        markers = [self._keys.marker(queue) for queue in dict.fromkeys(queues)]
        try:
            # A server checks the timeouts of blocked clients ten times a second. That is too seldom for a rate that
            # opens, so this process measures the time itself.
            async with asyncio.timeout(timeout if opened else None):
                taken = await self._wire.wait(markers, timeout + 1.0 if opened else timeout)
        except TimeoutError:
            return True
        except OutcomeUnknown as error:
            # Nothing was written: a lost hint is no hint.
            raise Unavailable(str(error)) from error
        self.took(taken)
        return bool(taken) or opened

    async def until(self, timeout: float) -> tuple[float, bool]:
        """How long to sleep, and whether something opens then."""
        if self.opens_us is None:
            return timeout, False
        left = (self.opens_us - await self._time.now_us()) / 1_000_000
        return (left, True) if left < timeout else (timeout, False)

    # ── what claims say ─────────────────────────────────────────────────────

    def note_opening(self, at_us: int | None) -> None:
        """A claim passed something over that opens at this time."""
        if at_us is not None:
            self.opens_us = at_us if self.opens_us is None else min(at_us, self.opens_us)

    def pause(self, queue: str) -> None:
        """A claim could take nothing of what waits in this queue: the next wait pauses, longer each time."""
        self.pauses[queue] = min(_LONGEST_PAUSE, 2 * self.pauses.get(queue, _SHORTEST_PAUSE / 2))

    def used(self) -> None:
        """A claim has seen what the hints were about, and has left markers where jobs are left."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
            self._taken.clear()

    # ── hints ───────────────────────────────────────────────────────────────

    def took(self, markers: list[str]) -> None:
        """These markers were taken, so a claim has to follow."""
        if not markers:
            return
        self._taken.update(dict.fromkeys(markers))
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_USE_WITHIN, self._hand_on)

    def _hand_on(self) -> None:
        self._handing = asyncio.create_task(self._give_back(), name="headrace-hint")

    async def _give_back(self) -> None:
        """Put back hints that no claim followed, for example because all slots are in use now: another worker may be free."""
        taken = list(self._taken)
        self.used()
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._wire.lay_back(taken)

    async def repeat_hints(self, queues: Sequence[str]) -> None:
        names = list(dict.fromkeys(queues))
        if self._keys.clustered:
            await self._client.ask_each(scripts.REPEAT_HINTS, names, self._time.given)
        elif names:
            await self._wire.run(scripts.REPEAT_HINTS, self._keys.of(*names), self._time.given)

    async def close(self) -> None:
        if self._taken:
            await self._give_back()
        if self._handing is not None:
            await asyncio.wait([self._handing])
