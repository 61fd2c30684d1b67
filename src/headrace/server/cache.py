"""Reads that many callers need at once. One goes to the store, and all callers meanwhile get its answer or error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One read at a time, shared by its callers. When the store hangs, a caller does not wait for earlier timeouts."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer of the read under way, or of a new one."""
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(_asked(self._ask), name="headrace-question")
            asking.add_done_callback(_heard)
        # A caller that is cancelled must not cancel the read for the others.
        return await asyncio.shield(asking)

    def forget(self) -> None:
        """The read under way is out of date, so the next caller begins another."""
        self._asking = None

    async def aclose(self) -> None:
        """Ask no longer."""
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.wait([asking])


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def _heard(asking: asyncio.Task[T]) -> None:
    """Retrieve the error, because all callers may have gone."""
    if not asking.cancelled():
        asking.exception()


class Cached(Generic[T]):
    """A value of the store, read at most once in that many seconds."""

    def __init__(self, ask: Callable[[], Awaitable[T]], ttl: float) -> None:
        self._ask = ask
        self._ttl = ttl
        self._reading: tuple[float, T] | None = None
        """The time of the read, and the value."""
        self._changes = 0
        self._asking = Shared(self._fresh)

    async def get(self) -> T:
        """The value, not older than that."""
        reading = self._reading
        if reading is not None and time.monotonic() - reading[0] < self._ttl:
            return reading[1]
        return await self._asking.get()

    async def _fresh(self) -> T:
        asked, changes = time.monotonic(), self._changes
        answer = await self._ask()
        # The value may lack a change that was made meanwhile.
        if changes == self._changes:
            self._reading = asked, answer
        return answer

    def forget(self) -> None:
        """It was changed here, so the next caller reads it again."""
        self._changes += 1
        self._reading = None
        self._asking.forget()

    async def aclose(self) -> None:
        """Ask no longer."""
        await self._asking.aclose()
