"""Orders of operators: a worker that is quiet for a while, and one that drains and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from headrace.model.job import JobState
from headrace.model.lease import ORDERS, WorkerId
from headrace.operate.audit import Ledger
from headrace.operate.workers import OrderVerb, WorkerOperations
from headrace.store.audit import Audit
from headrace.worker import Worker
from worker.harness import WAIT, Bench, until


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT):
        while not await condition():  # noqa: ASYNC110  # a store has no event for what is waited for
            await asyncio.sleep(0.005)


async def order(bench: Bench, id: WorkerId, verb: OrderVerb) -> None:
    """Give an order as soon as the worker is known."""
    operations = WorkerOperations(bench.store, Ledger(Audit(bench.store), "ann"))

    async def known() -> bool:
        return await operations.order(id, verb) is not None

    await eventually(known)


async def hindered(bench: Bench, worker: Worker) -> tuple[str, ...]:
    return next(one.hindered for one in await bench.store.workers() if one.id == worker.id)


async def until_hindered(bench: Bench, worker: Worker, *why: str) -> None:
    async def reported() -> bool:
        return await hindered(bench, worker) == why

    await eventually(reported)


async def test_a_quiet_worker_finishes_its_job_claims_nothing_and_comes_back(bench: Bench) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def gated() -> None:
        started.set()
        await gate.wait()

    @bench.app.task
    async def quick() -> None: ...

    async with bench.worker() as worker:
        running = await bench.enqueue(gated)
        await started.wait()
        await order(bench, worker.id, "quiet")
        await until_hindered(bench, worker, "quiet")
        waiting = await bench.enqueue(quick)
        gate.set()
        await bench.reach(running, JobState.DONE)
        async with bench.worker() as other:
            await bench.reach(waiting, JobState.DONE)
            assert other.counters.claimed == 1
        again = await bench.enqueue(quick)
        await order(bench, worker.id, "resume")
        await bench.reach(again, JobState.DONE)
        await until_hindered(bench, worker)
    page = await Audit(bench.store).page(await bench.store.now() - timedelta(days=1), limit=10)
    entries = [(entry.who, entry.action, entry.what) for entry in page.entries]
    assert entries == [("ann", "workers.resume", worker.name), ("ann", "workers.quiet", worker.name)]


async def test_a_drained_worker_finishes_its_job_and_ends(bench: Bench) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def gated() -> None:
        started.set()
        await gate.wait()

    async with bench.worker(drain="60s") as worker:
        id = await bench.enqueue(gated)
        await started.wait()
        await order(bench, worker.id, "drain")
        async with asyncio.timeout(WAIT):
            await worker.dismissed.wait()
        await order(bench, worker.id, "resume")
        gate.set()
        await bench.reach(id, JobState.DONE)
        await until(lambda: not worker.running)

        async def left() -> bool:
            return not await bench.store.workers()

        await eventually(left)


async def test_run_until_ends_with_the_order(bench: Bench) -> None:
    worker = Worker(bench.app.tasks, bench.store, bench.settings, queues=("default",))
    running = asyncio.create_task(worker.run_until(asyncio.Event()))
    await order(bench, worker.id, "drain")
    async with asyncio.timeout(WAIT):
        await running


async def test_a_signal_outlasts_a_resume(bench: Bench) -> None:
    async with bench.worker() as worker:
        await order(bench, worker.id, "quiet")
        await until_hindered(bench, worker, "quiet")
        worker.quiet()
        await order(bench, worker.id, "resume")
        beats = worker.figures().heartbeats
        await until(lambda: worker.figures().heartbeats > beats + 2)
        assert await hindered(bench, worker) == ("quiet",)


async def test_an_order_that_cannot_be_read_changes_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async with bench.worker() as worker:
        await bench.store.record(ORDERS, str(worker.id), b"\xff", None)
        await until(lambda: "cannot read its order" in caplog.text)
        assert not worker.dismissed.is_set()


async def test_orders_to_workers_that_have_gone_are_forgotten(bench: Bench) -> None:
    old = b'{"kind":"drain","by":"ann","at":"2020-01-01T00:00:00Z"}'
    await bench.store.record(ORDERS, "gone", old, None)
    async with bench.worker() as worker:
        await order(bench, worker.id, "quiet")
        assert list(await bench.store.records(ORDERS)) == [str(worker.id)]
