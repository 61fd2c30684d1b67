"""`step.using(tx=…)`: what a step wrote and the memory of it commit together, or neither."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from conftest import opened
from headrace.app import Headrace
from headrace.errors import Unsupported
from headrace.model.job import JobState
from headrace.store import connect
from headrace.store.memory import MemoryStore
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.task.steps import step, step_sync
from worker.harness import Bench
from worker.test_complete import Shop

TWICE = Retry(max_attempts=2, base="0s")


@pytest.fixture(params=["sqlite", "postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def bench(store_url: str) -> AsyncIterator[Bench]:
    async with opened(connect(store_url)) as store:
        bench = Bench(store)
        bench.app = Headrace(store_url)
        yield bench


@pytest.fixture
def shop(store_url: str) -> Shop:
    return Shop(store_url)


async def test_the_effect_of_a_step_is_there_once(bench: Bench, shop: Shop) -> None:
    class Undo(Exception):
        pass

    @bench.app.task(retry=Retry(max_attempts=3, base="0s"))
    async def work() -> int:
        attempt = current_job().attempt
        if attempt > 2:
            # The step is remembered, so that this transaction has nothing to write.
            return await step.using(key="row", tx=object())(int, 0)
        async with shop.transaction() as tx:
            number = await step.using(key="row", tx=tx)(int, attempt)
            if attempt == 1:
                raise Undo
        raise ConnectionError(f"after the commit of {number}")

    ids = await bench.enqueue_many(work, [()] * 4)
    # One at a time: a sync connection to SQLite that waits for the write lock would block the event loop.
    async with bench.worker(concurrency=1) as worker:
        for id in ids:
            job = await bench.reach(id, JobState.DONE, JobState.DEAD)
            assert job.state is JobState.DONE, job.history
            assert work.codec.decode_result(job.result) == 2
            assert [failure.kind.rpartition(".")[2] for failure in job.history] == ["Undo", "ConnectionError"]
            assert len(await bench.store.read_steps(id)) == 1
        assert worker.counters.lost == 0
    assert sorted(shop.effects()) == sorted(str(id) for id in ids)


async def test_the_sync_twin_in_a_thread(bench: Bench, shop: Shop) -> None:
    @bench.app.task(retry=TWICE)
    def work() -> int:
        with closing(shop.connect()) as conn:
            shop.write(conn)
            number = step_sync.using(tx=conn)(int, 7)
            if current_job().attempt == 1:
                conn.commit()
                raise ConnectionError
            conn.rollback()
        return number

    ids = await bench.enqueue_many(work, [()] * 3)
    async with bench.worker():
        for id in ids:
            job = await bench.reach(id, JobState.DONE, JobState.DEAD)
            assert job.state is JobState.DONE, job.history
    assert sorted(shop.effects()) == sorted(str(id) for id in ids)


async def test_a_rollback_in_each_attempt_ends_in_a_dead_job(bench: Bench, shop: Shop) -> None:
    @bench.app.task(retry=TWICE)
    async def work() -> None:
        async with shop.transaction() as tx:
            await step.using(tx=tx)(int, 7)
            raise ConnectionError

    id = await bench.enqueue(work)
    async with bench.worker():
        job = await bench.reach(id, JobState.DEAD)
    assert job.attempt == 2, "a step that was rolled back is no progress"
    assert shop.effects() == []
    assert await bench.store.read_steps(id) == []


async def test_a_store_without_transactions_says_so() -> None:
    bench = Bench(MemoryStore())

    @bench.app.task(retry=Retry(max_attempts=1))
    async def work() -> None:
        with pytest.raises(Unsupported, match="use SQLite or PostgreSQL"):
            await step.using(tx=object())(int, 7)

    assert (await bench.work(work)).state is JobState.DONE
