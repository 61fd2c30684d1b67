"""Many at once: store objects side by side in one loop, or a thread with a loop of its own for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Barrier
from typing import Any, TypeVar

from headrace.store import connect
from headrace.store.contract import Store

T = TypeVar("T")


@asynccontextmanager
async def side_by_side(url: str, count: int) -> AsyncGenerator[list[Store]]:
    """So many open store objects on one place."""
    async with AsyncExitStack() as stack:
        stores: list[Store] = []
        for _ in range(count):
            store = connect(url)
            await store.open()
            stack.push_async_callback(store.close)
            stores.append(store)
        yield stores


def in_threads(url: str, *works: Callable[[Store], Coroutine[Any, Any, T]]) -> list[T]:
    """Run each work on a store of its own in a thread of its own; all start together. Their answers in order."""
    start = Barrier(len(works), timeout=60)

    async def run(work: Callable[[Store], Awaitable[T]]) -> T:
        store = connect(url)
        try:
            await store.open()
            start.wait()
            return await work(store)
        finally:
            await store.close()

    def in_own_loop(work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        with asyncio.Runner() as runner:
            return runner.run(run(work))

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(in_own_loop, work) for work in works]]


async def together(*works: Awaitable[T]) -> list[T]:
    return list(await asyncio.gather(*works))
