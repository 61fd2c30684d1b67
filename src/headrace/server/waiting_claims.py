"""Waiting claims: thousands of idle claims share one `store.wait` per set of queues, and wake one after the other.

A hint wakes one claim of a line. A claim that finds a job wakes the next one. A claim that finds nothing goes back to
its place and wakes no other. So one job costs the same with a thousand idle workers as with one.
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
"""Seconds between two tries of a line, in case hints are lost."""

T = TypeVar("T")


class _Line:
    """The claims that wait for the same jobs, the longest waiting first."""

    __slots__ = ("empty", "hints", "people", "sleepers")

    def __init__(self) -> None:
        self.sleepers: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        self.people = 0
        self.hints = 0
        self.empty = False
        """The last try found nothing, and no hint came since, so a new claim need not try."""

    def wake(self) -> None:
        """Wake the first claim."""
        self.hints += 1
        self.empty = False
        while self.sleepers:
            sleeper, _ = self.sleepers.popitem(last=False)
            if not sleeper.done():
                sleeper.set_result(True)
                return

    def dismiss(self) -> None:
        """Wake all claims, because waiting has ended."""
        while self.sleepers:
            sleeper, _ = self.sleepers.popitem(last=False)
            if not sleeper.done():
                sleeper.set_result(False)

    async def look(self, look: Callable[[], Awaitable[T | None]]) -> T | None:
        hints = self.hints
        result = await look()
        self.empty = result is None and self.hints == hints
        return result


class _WakeListener:
    """Runs one `store.wait` after the other for one set of queues, while claims wait."""

    __slots__ = ("lines", "people", "task")

    def __init__(self) -> None:
        self.lines: dict[str | None, _Line] = {}
        """Lines by tenant."""
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
        """The number of claims."""
        return sum(ear.people for ear in self._ears.values())

    @property
    def sleeping(self) -> int:
        """The number of claims that sleep."""
        return sum(len(line.sleepers) for ear in self._ears.values() for line in ear.lines.values())

    @property
    def listening(self) -> int:
        """The number of `store.wait` calls."""
        return len(self._ears)

    def poke(self) -> None:
        """Wake one claim of every line, because there may be a job."""
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
        """Try until a job is found. None: none was found in time, or the server stops.

        `woken_look`: how a claim that was woken tries, if that differs.
        """
        until = monotonic() + seconds
        queues = tuple(sorted(set(queues)))
        ear = self._join(queues)
        line = ear.lines.setdefault(tenant, _Line())
        line.people += 1
        result: T | None = None
        woken = False
        try:
            await asyncio.sleep(0)  # Listening begins before the first try.
            if not line.empty:
                result = await line.look(look)
            while result is None and not self.closed and (left := until - monotonic()) > 0:
                woken = False
                if not await self._sleep(line, left):
                    break
                woken = True
                result = await line.look(woken_look or look)
            return result
        finally:
            if result is not None or (woken and not line.empty):
                # There may be more jobs, or this claim was woken and left or failed. So the next claim tries.
                line.wake()
            self._leave(queues, ear, tenant, line)

    async def _sleep(self, line: _Line, seconds: float) -> bool:
        """True: woken to try."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[bool] = loop.create_future()
        line.sleepers[sleeper] = None
        timer = loop.call_later(seconds, _time_is_up, sleeper)
        try:
            return await sleeper
        except asyncio.CancelledError:
            if sleeper.done() and not sleeper.cancelled() and sleeper.result():
                line.wake()  # This claim was woken, so the next one replaces it.
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
            # Wake one, after a hint or after the time, because hints may be lost.
            for line in list(ear.lines.values()):
                line.wake()

    def dismiss(self) -> None:
        """End all waiting claims, and accept no new ones."""
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
