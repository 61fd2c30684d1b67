"""No job is overlooked: whatever a worker is about to do when a job comes, the job is run without waiting for the next poll."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from headrace.errors import OutcomeUnknown
from headrace.model.job import JobState
from headrace.model.lease import Ask, Lease, Token
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.store.redis.store import RedisStore
from headrace.worker import fetcher, limit_feedback
from servers.redis import Flavour, RedisServer
from stores.redis.kit import eventually
from worker.harness import WAIT, Bench, Tally, until

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
    one, both = asyncio.Event(), asyncio.Event()

    @bench.app.task(name="hold")
    async def hold(number: int) -> None:
        began.append(number)
        one.set()
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
                await one.wait()
                # What still blocks is the janitor's wait for due times. It is no hint of a job.
                await eventually(lambda: "blocked_clients:1\r\n" in server.command("INFO", "clients"))
                bench.store = idle
                async with bench.worker(concurrency=1) as second:
                    await second.idle.wait()
                    await eventually(lambda: "blocked_clients:3\r\n" in server.command("INFO", "clients"))
                    await bench.enqueue(hold, 2)
                    await both.wait()
                    release.set()
        finally:
            await full.close()
            await idle.close()
    assert began == [1, 2]


# ── a store that claims for the worker it wakes ──────────────────────────────


class PromptStore:
    """A memory store that brings leases, and notes how it is listened to."""

    def __init__(self) -> None:
        self._inner = MemoryStore()
        self.heard: list[str] = []
        self.tokens: list[Token] = []
        self.fail_next = False
        self.brought = asyncio.Event()
        self.waited = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def claim(self, ask: Ask) -> Lease | None:
        self.heard.append("claim")
        self.tokens.append(ask.token)
        return await self._inner.claim(ask)

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        self.heard.append("wait")
        self.waited.set()
        return await self._inner.wait(queues, timeout)

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        self.heard.append("wait_to_claim")
        self.tokens.append(ask.token)
        if (lease := await self._inner.claim(ask)) is None:
            woken = await self._inner.wait(ask.queues, timeout)
            if self.fail_next:
                self.fail_next = False
                raise OutcomeUnknown("lost")
            if (lease := await self._inner.claim(ask)) is None:
                return woken
        self.brought.set()
        return lease


def prompt_bench(**settings: Any) -> tuple[PromptStore, Bench]:
    store = PromptStore()
    return store, Bench(cast("Store", store), poll=NEVER, **settings)


async def test_an_idle_worker_is_brought_its_jobs():
    store, bench = prompt_bench()
    ran = Tally()

    @bench.app.task(name="quick")
    async def quick() -> None:
        ran.add()

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        for number in range(1, 6):
            await worker.idle.wait()
            await bench.enqueue(quick)
            await ran.reach(number)
    # One claim at the start; each job then came with its wake-up.
    assert store.heard == ["claim", *["wait_to_claim"] * 6]


@pytest.mark.parametrize(
    ("look", "then"), [(NEVER.total_seconds(), "headrace-wait"), (0.0, "headrace-fetcher")], ids=["fresh", "stale"]
)
async def test_the_listener_starts_jobs_if_the_worker_knows_what_is_paused(
    monkeypatch: pytest.MonkeyPatch, look: float, then: str
):
    monkeypatch.setattr(limit_feedback, "LOOK", look)
    _, bench = prompt_bench()
    began: list[str] = []

    @bench.app.on_event
    def _note(event: str, _: Any) -> None:
        if event == "lease.claimed":
            task = asyncio.current_task()
            began.append("" if task is None else task.get_name())

    @bench.app.task(name="quick")
    async def quick() -> None: ...

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        for _ in range(3):
            await worker.idle.wait()
            await bench.reach(await bench.enqueue(quick), JobState.DONE)
    # Before the first job the worker has not looked yet.
    assert began == ["headrace-fetcher", then, then]


async def test_the_listener_leaves_jobs_to_the_fetcher_while_a_task_is_paused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limit_feedback, "LOOK", NEVER.total_seconds())
    store, bench = prompt_bench()
    ran = Tally()

    @bench.app.task(name="quick")
    async def quick() -> None:
        ran.add()

    await store.pause("quick", kind="task", by="", until=None)
    async with bench.worker() as worker, asyncio.timeout(WAIT):
        for _ in range(3):
            await worker.idle.wait()
            await bench.reach(await bench.enqueue(quick), JobState.SCHEDULED)
    assert ran.count == 0


async def test_an_idle_worker_is_brought_its_sync_jobs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetcher, "QUICK_SYNC", WAIT)
    store, bench = prompt_bench()
    may_end = threading.Event()

    @bench.app.task(name="quick")
    def quick() -> None:
        # It ends after more turns of the loop than an async job that never waits.
        loop.call_soon_threadsafe(loop.call_later, 0.01, may_end.set)
        assert may_end.wait(WAIT)
        may_end.clear()

    loop = asyncio.get_running_loop()
    async with bench.worker() as worker, asyncio.timeout(WAIT):
        for _ in range(5):
            await worker.idle.wait()
            await bench.reach(await bench.enqueue(quick), JobState.DONE)
        await worker.idle.wait()
    assert store.heard == ["claim", *["wait_to_claim"] * 6]


async def test_an_idle_worker_is_brought_jobs_after_some_that_await_a_little(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetcher, "BRIEF", WAIT)
    monkeypatch.setattr(fetcher, "RARE", 0.0)
    store, bench = prompt_bench()

    @bench.app.task(name="brief")
    async def brief() -> None:
        # It ends after more turns of the loop than a job that never waits.
        await asyncio.sleep(0.01)

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        for _ in range(5):
            await worker.idle.wait()
            await bench.reach(await bench.enqueue(brief), JobState.DONE)
        await worker.idle.wait()
    assert store.heard == ["claim", *["wait_to_claim"] * 6]


async def test_a_worker_listens_while_a_sync_job_goes_on():
    store, bench = prompt_bench()
    release = threading.Event()

    @bench.app.task(name="hold")
    def hold() -> None:
        assert release.wait(WAIT)

    @bench.app.task(name="quick")
    def quick() -> None: ...

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        held = await bench.enqueue(hold)
        await store.waited.wait()
        assert store.heard[:3] == ["claim", "wait_to_claim", "wait"]
        await bench.reach(await bench.enqueue(quick), JobState.DONE)
        release.set()
        await bench.reach(held, JobState.DONE)


async def test_a_worker_that_runs_something_only_listens():
    store, bench = prompt_bench()
    release, ended = asyncio.Event(), asyncio.Event()
    ran = Tally()

    @bench.app.task(name="hold")
    async def hold() -> None:
        ran.add()
        await release.wait()
        ended.set()

    @bench.app.task(name="quick")
    async def quick() -> None:
        ran.add()

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        await bench.enqueue(hold)
        await store.waited.wait()
        assert store.heard[:3] == ["claim", "wait_to_claim", "wait"]
        await bench.enqueue(quick)
        await ran.reach(2)
        assert "wait_to_claim" not in store.heard[3:]
        # And once it has nothing to do, it is brought its jobs again.
        release.set()
        await ended.wait()
        await bench.enqueue(quick)
        await ran.reach(3)
        await until(lambda: store.heard[-1] == "wait_to_claim")


@pytest.mark.parametrize("quick", [True, False], ids=["at once", "after a while"])
async def test_what_was_brought_to_a_worker_that_stops_is_handed_back(quick: bool):
    store, bench = prompt_bench()

    @bench.app.task(name="never")
    async def never() -> None:
        raise AssertionError("it has stopped")

    async with asyncio.timeout(WAIT):
        async with bench.worker() as worker:
            await worker.idle.wait()
            id = await bench.enqueue(never)
            if quick:
                worker.quiet()
            else:
                # The listener has returned, and the fetcher has not looked yet.
                await store.brought.wait()
        [job] = await bench.store.get([id])
    assert job is not None
    assert (job.state, job.failures, job.crashes) == (JobState.READY, 0, 0)


async def test_a_lease_that_may_have_been_made_is_asked_for():
    store, bench = prompt_bench()
    ran = Tally()

    @bench.app.task(name="quick")
    async def quick() -> None:
        ran.add()

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        store.fail_next = True
        await bench.enqueue(quick)
        await ran.reach(1)
        assert store.heard[:3] == ["claim", "wait_to_claim", "claim"]
        assert store.tokens[1] == store.tokens[2]
        await until(lambda: store.heard[-1] == "wait_to_claim")
    assert len(set(store.tokens)) == len(store.tokens) - 1


async def test_a_worker_with_reserved_slots_claims_by_itself():
    store, bench = prompt_bench(reserve=["high=2"])
    ran = Tally()

    @bench.app.task(name="quick")
    async def quick() -> None:
        ran.add()

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        await bench.enqueue(quick)
        await ran.reach(1)
    assert "wait_to_claim" not in store.heard
