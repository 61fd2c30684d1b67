"""How much is claimed ahead, when results are settled, and that a backlog is never hidden in a worker."""

from __future__ import annotations

import asyncio
import threading

from headrace.model.job import JobState
from headrace.model.lease import MAX_LEASE
from headrace.worker.pace import Pace
from worker.harness import Bench, Tally, until


async def test_long_jobs_are_claimed_for_free_slots_only(bench: Bench) -> None:
    started, go = Tally(), asyncio.Event()

    @bench.app.task
    async def slow() -> None:
        started.add()
        await go.wait()

    ids = await bench.enqueue_many(slow, [()] * 50)
    async with bench.worker(concurrency=4):
        await started.reach(4)
        stats = (await bench.store.stats()).queues[0]
        assert (stats.running, stats.ready) == (4, 46)
        go.set()
        for id in ids:
            await bench.reach(id, JobState.DONE)


async def test_short_jobs_are_claimed_by_the_hundred(bench: Bench) -> None:
    @bench.app.task
    async def quick() -> None: ...

    bench.events = []
    await bench.enqueue_many(quick, [()] * 20_000)
    async with bench.worker(concurrency=10) as worker:
        await worker.idle.wait()
    sizes = [fields["jobs"] for name, fields in bench.events if name == "lease.claimed"]
    # A machine that stands still for a second hands some back and claims them again.
    assert sum(sizes) == 20_000 + worker.counters.released
    # Far more than there are slots, how much more depends on the machine.
    assert max(sizes) > 10
    assert len(sizes) < 20_000 / 10


async def test_what_does_not_start_soon_is_handed_back(bench: Bench) -> None:
    """Short jobs, then one that keeps the only slot: what was claimed ahead goes to others."""
    held, go = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def step(number: int) -> None:
        if number == 2000:
            held.set()
            await go.wait()

    ids = await bench.enqueue_many(step, [(number,) for number in range(2300)])
    async with bench.worker(concurrency=1) as busy:
        await held.wait()
        await until(lambda: busy.waiting > 0 or busy.counters.released > 0)
        async with bench.worker(concurrency=1, lease="3s"):
            for id in ids[:2000] + ids[2001:]:
                job = await bench.reach(id, JobState.DONE)
                assert job.failures == job.crashes == 0
        assert busy.counters.released > 0
        go.set()
        await bench.reach(ids[2000], JobState.DONE)


async def test_a_short_job_does_not_wait_for_the_long_one_of_its_lease(bench: Bench) -> None:
    go = asyncio.Event()

    @bench.app.task
    async def step(number: int) -> None:
        if number == 0:
            await go.wait()

    long, *short = await bench.enqueue_many(step, [(number,) for number in range(5)])
    async with bench.worker():
        for id in short:
            await bench.reach(id, JobState.DONE)
        assert (await bench.get(long)).state is JobState.RUNNING
        go.set()
        await bench.reach(long, JobState.DONE)


async def test_blocked_threads_do_not_stop_async_jobs(bench: Bench) -> None:
    over = threading.Event()

    @bench.app.task
    def block() -> None:
        over.wait(60)

    @bench.app.task
    async def quick() -> None: ...

    blocked = await bench.enqueue_many(block, [()] * 3)
    quicks = await bench.enqueue_many(quick, [()] * 50)
    async with bench.worker(concurrency=4):
        for id in quicks:
            await bench.reach(id, JobState.DONE)
        over.set()
        for id in blocked:
            await bench.reach(id, JobState.DONE)


def test_the_pace_decides_how_far_ahead() -> None:
    pace = Pace()
    assert pace.ahead == 0
    pace.rate, pace.trip = 10.0, 0.001  # ten jobs a second: every one is long
    assert pace.ahead == 0
    pace.rate = 4000.0
    assert 50 <= pace.ahead <= 200
    pace.rate = 1e6
    assert pace.ahead == 2 * MAX_LEASE
    pace.rate, pace.trip = 10.0, 0.2  # a store far away
    assert pace.ahead > 0
