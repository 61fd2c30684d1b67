"""Short words for tests with real servers: until something is so, until somebody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import StoreError

T = TypeVar("T")


async def eventually(so: Callable[[], bool]) -> None:
    """Until it is so; a server's state has no event to await. The test's own time limit ends it."""
    while not await asyncio.to_thread(so):  # noqa: ASYNC110 - asks another process
        await asyncio.sleep(0.005)


async def asked_until_answered(verb: Callable[..., Awaitable[T]], *args: object) -> T:
    """What a worker does through an outage: ask again."""
    while True:
        try:
            return await verb(*args)
        except StoreError:
            await asyncio.sleep(0.01)
