"""wait: asleep until there may be something to claim; only a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from conformance.kit import claim, put
from headrace.store.contract import Store


async def woken(store: Store, *queues: str, by: Callable[[], Awaitable[object]]) -> bool:
    """Whether a waiting call wakes. The nudge is repeated, because it may come before the call listens."""
    sleeper = asyncio.create_task(store.wait(queues, 60))
    while not sleeper.done():
        await by()
        await asyncio.wait([sleeper], timeout=0.05)
    return sleeper.result()


async def test_nobody_comes(store: Store):
    assert await store.wait(["default"], 0.01) is False
    assert await store.wait(["default"], 0) is False


async def test_an_enqueue_wakes(store: Store):
    assert await woken(store, "default", by=lambda: put(store)) is True
    assert await claim(store) is not None


async def test_an_enqueue_of_any_asked_queue_wakes(store: Store):
    assert await woken(store, "a", "b", "c", by=lambda: put(store, queue="b")) is True


async def test_several_sleepers(store: Store):
    sleepers = [asyncio.create_task(store.wait([queue], 60)) for queue in ("a", "b", "a")]
    while not all(sleeper.done() for sleeper in sleepers):
        await put(store, queue="a")
        await put(store, queue="b")
        await asyncio.wait(sleepers, timeout=0.05)
    assert [sleeper.result() for sleeper in sleepers] == [True] * 3


async def test_a_sleeper_may_be_cancelled(store: Store):
    sleeper = asyncio.create_task(store.wait(["default"], 60))
    await asyncio.wait([sleeper], timeout=0.02)
    sleeper.cancel()
    await asyncio.wait([sleeper])
    assert sleeper.cancelled()
    assert await woken(store, "default", by=lambda: put(store)) is True
