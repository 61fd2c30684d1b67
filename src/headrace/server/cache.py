"""Questions that many ask at once: one goes to the store, and everybody who asks meanwhile gets its answer or its error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One question at a time. When the store hangs, nobody waits for the patience of those before."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The answer to the question that is on its way, or to a new one."""
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(_asked(self._ask), name="headrace-question")
            asking.add_done_callback(_heard)
        # Whoever leaves does not take the answer away from the others.
        return await asyncio.shield(asking)

    def forget(self) -> None:
        """What is on its way is out of date: whoever asks from now on begins another."""
        self._asking = None

    async def aclose(self) -> None:
        """Ask no longer."""
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.wait([asking])


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def _heard(asking: asyncio.Task[T]) -> None:
    """Everybody may have gone before the error came."""
    if not asking.cancelled():
        asking.exception()


class Cached(Generic[T]):
    """Something of the store, asked for at most once in so many seconds, however many ask."""

    def __init__(self, ask: Callable[[], Awaitable[T]], ttl: float) -> None:
        self._ask = ask
        self._ttl = ttl
        self._found: tuple[float, T] | None = None
        """When it was asked for, and what the answer was."""
        self._changes = 0
        self._asking = Shared(self._fresh)

    async def get(self) -> T:
        """As it was not longer ago than that."""
        found = self._found
        if found is not None and time.monotonic() - found[0] < self._ttl:
            return found[1]
        return await self._asking.get()

    async def _fresh(self) -> T:
        asked, changes = time.monotonic(), self._changes
        answer = await self._ask()
        # What was changed meanwhile may not be in it.
        if changes == self._changes:
            self._found = asked, answer
        return answer

    def forget(self) -> None:
        """It was changed here: whoever asks from now on gets it as it is."""
        self._changes += 1
        self._found = None
        self._asking.forget()

    async def aclose(self) -> None:
        """Ask no longer."""
        await self._asking.aclose()
