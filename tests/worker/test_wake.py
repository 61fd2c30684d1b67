"""No job is overlooked: whatever a worker is about to do when a job comes, the job is run without waiting for the next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from headrace.lease import Ask, Lease
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.store.redis.store import RedisStore
from headrace.testing.redis_servers import Flavour, RedisServer
from stores.redis.kit import eventually
from worker.harness import WAIT, Bench

NEVER = timedelta(days=1)


class Trap:
    """A memory store that has something happen at one point of one of its calls."""

    def __init__(self, point: str, number: int) -> None:
        self._inner = MemoryStore()
        self._point, self._number = point, number
        self.bench: Bench
        self.sprung = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _at(self, point: str) -> None:
        if point != self._point:
            return
        self._number -= 1
        if self._number == 0:
            await self.bench.enqueue("late")
            self.sprung.set()

    async def claim(self, ask: Ask) -> Lease | None:
        await self._at("claim begins")
        lease = await self._inner.claim(ask)
        await self._at("claim ends" if lease is None else "claim found")
        return lease

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        await self._at("wait begins")
        meanwhile = asyncio.ensure_future(self._meanwhile())
        try:
            return await self._inner.wait(queues, timeout)
        finally:
            meanwhile.cancel()

    async def _meanwhile(self) -> None:
        await self._at("waiting")
        await asyncio.sleep(0)
        await self._at("still waiting")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("claim begins", 1),
        ("claim begins", 2),
        ("claim ends", 1),
        ("claim ends", 2),
        ("claim found", 1),
        ("wait begins", 1),
        ("waiting", 1),
        ("still waiting", 1),
    ],
)
async def test_a_job_that_comes_while_the_worker_goes_to_sleep_wakes_it(point: str, number: int, busy: bool):
    trap = Trap(point, number)
    bench = trap.bench = Bench(cast("Store", trap), poll=NEVER)
    late, early = asyncio.Event(), asyncio.Event()

    @bench.app.task(name="late")
    async def _late() -> None:
        late.set()

    @bench.app.task(name="early")
    async def _early() -> None:
        early.set()

    if busy:
        await bench.enqueue("early")
    async with bench.worker() as worker, asyncio.timeout(WAIT):
        if busy:
            await early.wait()
        if (point, busy) in {("claim found", False), ("claim ends", True)}:
            # It never came to that before it slept: wake it once.
            await worker.idle.wait()
            await bench.enqueue("early")
        await trap.sprung.wait()
        await late.wait()


@pytest.mark.parametrize("flavour", ["redis", "valkey"])
async def test_a_full_worker_does_not_take_the_hint_of_an_idle_one(flavour: Flavour):
    bench = Bench(poll=NEVER, lease=timedelta(seconds=60), heartbeat=timedelta(seconds=10))
    release = asyncio.Event()
    began: list[int] = []
    both = asyncio.Event()

    @bench.app.task(name="hold")
    async def hold(number: int) -> None:
        began.append(number)
        if len(began) == 2:
            both.set()
        await release.wait()

    with RedisServer.start(flavour) as server:
        full, idle = RedisStore(server.url()), RedisStore(server.url())
        await full.open()
        await idle.open()
        try:
            bench.store = full
            async with bench.worker(concurrency=1) as first, asyncio.timeout(WAIT):
                await first.idle.wait()
                await bench.enqueue(hold, 1)
                await eventually(lambda: "blocked_clients:0\r\n" in server.command("INFO", "clients"))
                bench.store = idle
                async with bench.worker(concurrency=1) as second:
                    await second.idle.wait()
                    await eventually(lambda: "blocked_clients:1\r\n" in server.command("INFO", "clients"))
                    await bench.enqueue(hold, 2)
                    await both.wait()
                    release.set()
        finally:
            await full.close()
            await idle.close()
    assert began == [1, 2]
