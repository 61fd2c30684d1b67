"""Waiting claims: thousands of idle claims asleep on one `store.wait` per set of queues, woken one after the other.

A hint wakes one claim of a line. One that finds something wakes the next; one that finds nothing goes back to its place,
and nobody after it is bothered. So a thousand idle workers cost one job as much as one of them does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Final, TypeVar

from headrace.errors import HeadraceError
from headrace.store.contract import Store

log = logging.getLogger("headrace.server")

POLL: Final = 1.0
"""Seconds between two looks of a line, should every hint be lost."""

T = TypeVar("T")


class _Line:
    """Those who wait for the same jobs, the longest waiting first."""

    __slots__ = ("empty", "hints", "people", "sleepers")

    def __init__(self) -> None:
        self.sleepers: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        self.people = 0
        self.hints = 0
        self.empty = False
        """The last look found nothing, and no hint came since: a newcomer need not look."""

    def wake(self) -> None:
        """The first one, to have a look."""
        self.hints += 1
        self.empty = False
        while self.sleepers:
            sleeper, _ = self.sleepers.popitem(last=False)
            if not sleeper.done():
                sleeper.set_result(True)
                return

    def dismiss(self) -> None:
        """Everybody: there is nothing to wait for any more."""
        while self.sleepers:
            sleeper, _ = self.sleepers.popitem(last=False)
            if not sleeper.done():
                sleeper.set_result(False)

    async def look(self, look: Callable[[], Awaitable[T | None]]) -> T | None:
        hints = self.hints
        found = await look()
        self.empty = found is None and self.hints == hints
        return found


class _WakeListener:
    """One `store.wait` after the other for one set of queues, while somebody waits."""

    __slots__ = ("lines", "people", "task")

    def __init__(self) -> None:
        self.lines: dict[str | None, _Line] = {}
        """By the tenant that they claim for."""
        self.people = 0
        self.task: asyncio.Task[None] | None = None


class WaitingClaims:
    """All long polls of one server process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ears: dict[tuple[str, ...], _WakeListener] = {}
        self.closed = False

    @property
    def waiting(self) -> int:
        """How many are here."""
        return sum(ear.people for ear in self._ears.values())

    @property
    def sleeping(self) -> int:
        """How many of them are not just looking."""
        return sum(len(line.sleepers) for ear in self._ears.values() for line in ear.lines.values())

    @property
    def listening(self) -> int:
        """How many calls of `store.wait` that takes."""
        return len(self._ears)

    def poke(self) -> None:
        """There may be something, for anybody."""
        for ear in self._ears.values():
            for line in ear.lines.values():
                line.wake()

    async def until_found(
        self,
        queues: tuple[str, ...],
        tenant: str | None,
        seconds: float,
        look: Callable[[], Awaitable[T | None]],
        woken_look: Callable[[], Awaitable[T | None]] | None = None,
    ) -> T | None:
        """Look until something is found; None: nothing was within that time, or the server stops.

        `woken_look`: how one looks that has slept, if that is another matter.
        """
        until = monotonic() + seconds
        queues = tuple(sorted(set(queues)))
        ear = self._join(queues)
        line = ear.lines.setdefault(tenant, _Line())
        line.people += 1
        found: T | None = None
        woken = False
        try:
            await asyncio.sleep(0)  # listening has begun before the first look
            if not line.empty:
                found = await line.look(look)
            while found is None and not self.closed and (left := until - monotonic()) > 0:
                woken = False
                if not await self._sleep(line, left):
                    break
                woken = True
                found = await line.look(woken_look or look)
            return found
        finally:
            if found is not None or (woken and not line.empty):
                # There may be more where this came from; or this one was woken and has left, or something went wrong.
                line.wake()
            self._leave(queues, ear, tenant, line)

    async def _sleep(self, line: _Line, seconds: float) -> bool:
        """True: woken to look."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[bool] = loop.create_future()
        line.sleepers[sleeper] = None
        timer = loop.call_later(seconds, _time_is_up, sleeper)
        try:
            return await sleeper
        except asyncio.CancelledError:
            if sleeper.done() and not sleeper.cancelled() and sleeper.result():
                line.wake()  # it was this one's turn: the next one takes it
            raise
        finally:
            timer.cancel()
            line.sleepers.pop(sleeper, None)

    def _join(self, queues: tuple[str, ...]) -> _WakeListener:
        ear = self._ears.get(queues)
        if ear is None:
            ear = self._ears[queues] = _WakeListener()
            ear.task = asyncio.create_task(self._listen(queues, ear), name="headrace-waiting-room")
        ear.people += 1
        return ear

    def _leave(self, queues: tuple[str, ...], ear: _WakeListener, tenant: str | None, line: _Line) -> None:
        ear.people -= 1
        line.people -= 1
        if not line.people:
            del ear.lines[tenant]
        if not ear.people and self._ears.get(queues) is ear:
            del self._ears[queues]
            if ear.task is not None:
                ear.task.cancel()

    async def _listen(self, queues: tuple[str, ...], ear: _WakeListener) -> None:
        while not self.closed:
            try:
                await self._store.wait(queues, POLL * random.uniform(0.9, 1.0))
            except HeadraceError as error:
                log.warning("listening for new jobs failed, trying again: %s", error)
                await asyncio.sleep(POLL)
            # Whether by a hint or because time is up: hints may be lost.
            for line in list(ear.lines.values()):
                line.wake()

    def dismiss(self) -> None:
        """Send everybody home, and let nobody in any more."""
        self.closed = True
        for ear in self._ears.values():
            for line in ear.lines.values():
                line.dismiss()

    async def close(self) -> None:
        """The same, and stop listening."""
        self.dismiss()
        tasks = [ear.task for ear in self._ears.values() if ear.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def _time_is_up(sleeper: asyncio.Future[bool]) -> None:
    if not sleeper.done():
        sleeper.set_result(False)
