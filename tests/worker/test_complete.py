"""`complete`: the task's own writes and the end of its job commit together, or neither."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import psycopg
import pytest

from conftest import opened
from headrace.app import Headrace
from headrace.errors import LeaseLost, Unsupported
from headrace.model.job import JobId, JobState
from headrace.model.lease import new_worker_id
from headrace.store import connect
from headrace.task.context import JobContext, current_job
from headrace.task.retry import Retry
from worker.harness import Bench, until

ONCE = Retry(max_attempts=1)


@pytest.fixture(params=["sqlite", "postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Shop:
    """The user's own table beside the jobs, sync and async, on either database."""

    def __init__(self, url: str) -> None:
        self.url = url
        with closing(self.connect()) as conn:
            conn.execute("create table effects (job text not null)")
            conn.commit()

    def connect(self) -> Any:
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"))
        return psycopg.connect(self.url)

    def write(self, conn: Any) -> None:
        conn.execute(f"insert into effects values ('{current_job().id}')")

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        """Commits at the end, rolls back on an error."""
        if self.url.startswith("sqlite"):
            with closing(self.connect()) as conn, conn:
                self.write(conn)
                yield conn
            return
        conn = await asyncpg.connect(self.url)
        try:
            async with conn.transaction():
                await conn.execute(f"insert into effects values ('{current_job().id}')")
                yield conn
        finally:
            await conn.close()

    def effects(self) -> list[str]:
        with closing(self.connect()) as conn:
            return [row[0] for row in conn.execute("select job from effects").fetchall()]


@pytest.fixture
async def bench(store_url: str) -> AsyncIterator[Bench]:
    async with opened(connect(store_url)) as store:
        bench = Bench(store)
        bench.app = Headrace(store_url)
        yield bench


@pytest.fixture
def shop(store_url: str) -> Shop:
    return Shop(store_url)


async def test_effects_and_completion_commit_together(bench: Bench, shop: Shop) -> None:
    @bench.app.task
    async def work(number: int) -> int:
        async with shop.transaction() as tx:
            await current_job().complete(number, tx=tx)
        return number

    @bench.app.task
    async def plain(number: int) -> int:
        await asyncio.sleep(0)
        return number

    ids = await bench.enqueue_many(work, [(number,) for number in range(8)])
    others = await bench.enqueue_many(plain, [(number,) for number in range(8)])
    async with bench.worker() as worker:
        for number, id in enumerate(ids):
            job = await bench.reach(id, JobState.DONE)
            assert (work.codec.decode_result(job.result), job.attempt, job.failures) == (number, 1, 0)
        for id in others:
            await bench.reach(id, JobState.DONE)
        await worker.idle.wait()
        assert worker.counters.lost == 0
    assert sorted(shop.effects()) == sorted(str(id) for id in ids)
    figures = (await bench.store.stats()).queues[0]
    assert (figures.done_total, figures.running) == (16, 0)


async def test_the_sync_twin_in_a_thread(bench: Bench, shop: Shop) -> None:
    @bench.app.task
    def work() -> None:
        with closing(shop.connect()) as conn:
            shop.write(conn)
            current_job().complete_sync("kept", tx=conn)
            conn.commit()

    ids = await bench.enqueue_many(work, [()] * 5)
    async with bench.worker() as worker:
        for id in ids:
            job = await bench.reach(id, JobState.DONE)
            assert job.attempt == 1
        await worker.idle.wait()
    assert sorted(shop.effects()) == sorted(str(id) for id in ids)


async def test_a_rollback_takes_the_completion_with_it(bench: Bench, shop: Shop) -> None:
    class Undo(Exception):
        pass

    @bench.app.task(retry=ONCE)
    async def returns() -> None:
        try:
            async with shop.transaction() as tx:
                await current_job().complete(tx=tx)
                raise Undo
        except Undo:
            pass

    @bench.app.task(retry=ONCE)
    async def raises() -> None:
        async with shop.transaction() as tx:
            await current_job().complete(tx=tx)
            raise Undo

    @bench.app.task(retry=ONCE)
    def forgets() -> None:
        with closing(shop.connect()) as conn:
            shop.write(conn)
            current_job().complete_sync(tx=conn)

    kinds: dict[JobId, str] = {}
    for task, kind in ((returns, "rolled_back"), (raises, "Undo"), (forgets, "rolled_back")):
        kinds[await bench.enqueue(task)] = kind
    async with bench.worker():
        for id, kind in kinds.items():
            job = await bench.reach(id, JobState.DEAD)
            assert job.failures == 1
            assert kind in job.history[0].kind
    assert shop.effects() == []


async def test_a_task_that_fails_after_its_commit_is_done(bench: Bench, shop: Shop) -> None:
    @bench.app.task(retry=ONCE)
    async def work() -> None:
        async with shop.transaction() as tx:
            await current_job().complete(tx=tx)
        raise RuntimeError("too late")

    id = await bench.enqueue(work)
    async with bench.worker() as worker:
        await bench.reach(id, JobState.DONE)
        await worker.idle.wait()
    job = await bench.get(id)
    assert (job.state, job.failures, shop.effects()) == (JobState.DONE, 0, [str(id)])


async def test_a_long_transaction_keeps_the_lease(bench: Bench, shop: Shop) -> None:
    """The neighbours are settled meanwhile, and no other worker takes the job."""
    entered, go = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def work() -> None:
        async with shop.transaction() as tx:
            await current_job().complete(tx=tx)
            entered.set()
            if not shop.url.startswith("sqlite"):  # its one writer would block all others
                await go.wait()

    @bench.app.task
    async def plain() -> None: ...

    id = await bench.enqueue(work)
    others = await bench.enqueue_many(plain, [()] * 5)
    async with bench.worker(lease="5s", heartbeat="100ms"):
        await entered.wait()
        for other in others:
            await bench.reach(other, JobState.DONE)
        go.set()
        job = await bench.reach(id, JobState.DONE)
    assert (job.attempt, shop.effects()) == (1, [str(id)])


async def test_a_lost_job_cannot_be_completed(bench: Bench, shop: Shop) -> None:
    ready, go, errors = asyncio.Event(), asyncio.Event(), list[BaseException]()

    @bench.app.task
    async def work() -> None:
        if current_job().attempt > 1:
            return
        ready.set()
        await go.wait()
        try:
            async with shop.transaction() as tx:
                await current_job().complete(tx=tx)
        except BaseException as error:
            errors.append(error)
            raise

    id = await bench.enqueue(work)
    async with bench.worker(heartbeat="10m", lease="1h") as worker:
        await ready.wait()
        await bench.store.abandon(worker.id, "silence")
        await until_reaped(bench)
        go.set()
        await until(lambda: bool(errors))
        job = await bench.reach(id, JobState.DONE)
    assert isinstance(errors[0], LeaseLost)
    assert (job.attempt, shop.effects()) == (2, [])


async def until_reaped(bench: Bench) -> None:
    """Some janitor, the worker's own perhaps, takes the lease over."""
    await bench.store.reap(new_worker_id(), bench.settings.poll)


async def test_what_cannot_be_completed_says_so(bench: Bench, shop: Shop) -> None:
    seen: list[str] = []

    @bench.app.task
    async def blocks() -> None:
        with pytest.raises(Unsupported, match="await"):
            current_job().complete_sync(tx=object())
        seen.append("blocks")

    @bench.app.task
    async def twice() -> None:
        async with shop.transaction() as tx:
            await current_job().complete(tx=tx)
            with pytest.raises(Unsupported, match="once"):
                await current_job().complete(tx=tx)
        seen.append("twice")

    kept: list[JobContext] = []

    @bench.app.task
    async def keeps() -> None:
        kept.append(current_job())

    ids = [await bench.enqueue(task) for task in (blocks, twice, keeps)]
    async with bench.worker():
        for id in ids:
            await bench.reach(id, JobState.DONE)
        with pytest.raises(Unsupported, match="its task has ended"):
            await kept[0].complete(tx=object())
    assert sorted(seen) == ["blocks", "twice"]
