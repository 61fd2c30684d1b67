"""Timeouts, cancels, lost leases and draining, for each kind of slot."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest

from headrace.model.job import JobState
from headrace.model.lease import new_worker_id
from headrace.model.records import CancelAnswer
from headrace.task.context import current_job
from headrace.task.retry import Retry
from worker import process_tasks
from worker.harness import WAIT, Bench, Events, Tally, until

ONCE = Retry(max_attempts=1)


# ── timeouts ────────────────────────────────────────────────────────────────


async def test_timeout_of_an_async_task(bench: Bench) -> None:
    @bench.app.task(timeout="60ms", retry=ONCE)
    async def slow() -> None:
        await asyncio.sleep(WAIT)

    job = await bench.work(slow)
    assert (job.state, job.failures, job.history[0].kind) == (JobState.DEAD, 1, "timeout")


async def test_timeout_of_a_thread_is_told_when_it_returns(bench: Bench) -> None:
    @bench.app.task(timeout="60ms", retry=ONCE)
    def slow() -> None:
        while not current_job().cancelled:
            time.sleep(0.005)

    job = await bench.work(slow)
    assert (job.state, job.history[0].kind) == (JobState.DEAD, "timeout")


async def test_timeout_of_a_process(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    job = await bench.work(process_tasks.sleep_long)
    assert (job.state, job.history[0].kind, job.crashes) == (JobState.DEAD, "timeout", 0)


async def test_a_process_that_ignores_term_is_killed(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    job = await bench.work(process_tasks.stubborn)
    assert (job.state, job.history[0].kind) == (JobState.DEAD, "timeout")


async def test_a_task_that_swallows_its_cancellation_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.app.task(timeout="50ms", retry=ONCE)
    async def stubborn() -> str:
        while not any("goes on" in record.message for record in caplog.records):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return "done all the same"

    @bench.app.task
    async def after() -> None:
        await asyncio.sleep(0)

    job = await bench.work(stubborn)
    assert (job.state, job.history[0].kind) == (JobState.DEAD, "timeout")
    assert any("goes on" in record.message for record in caplog.records)
    assert (await bench.work(after)).state is JobState.DONE


# ── cancel ──────────────────────────────────────────────────────────────────


async def test_cancel_of_a_running_async_task(bench: Bench) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(WAIT)
        finally:
            ended.set()

    id = await bench.enqueue(slow)
    async with bench.worker():
        await started.wait()
        assert await bench.store.cancel([id], "by hand") == {id: CancelAnswer.ASKED}
        job = await bench.reach(id, JobState.CANCELLED)
    assert ended.is_set()
    assert (job.note, job.failures) == ("by hand", 0)


async def test_cancel_of_a_running_thread(bench: Bench) -> None:
    started = threading.Event()

    @bench.app.task
    def slow() -> None:
        started.set()
        while not current_job().cancelled:
            time.sleep(0.005)
        raise RuntimeError("stopped")

    id = await bench.enqueue(slow)
    async with bench.worker():
        await asyncio.to_thread(started.wait, WAIT)
        await bench.store.cancel([id])
        job = await bench.reach(id, JobState.CANCELLED, JobState.SCHEDULED)
    assert job.state is JobState.CANCELLED


async def test_cancel_of_a_running_process(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    id = await bench.enqueue(process_tasks.sleep_for_ever)
    events = bench.events = Events()
    async with bench.worker():
        await events.heard("attempt.started")
        await bench.store.cancel([id])
        job = await bench.reach(id, JobState.CANCELLED)
    assert job.failures == job.crashes == 0


async def test_cancel_of_a_job_that_waits_in_the_worker(bench: Bench) -> None:
    started, go, ran = asyncio.Event(), asyncio.Event(), list[int]()

    @bench.app.task
    async def step(number: int) -> None:
        ran.append(number)
        if number == 1000:
            started.set()
            await go.wait()

    # Quick jobs first, so that the worker claims ahead; then one that keeps the only slot.
    ids = await bench.enqueue_many(step, [(number,) for number in range(1100)])
    async with bench.worker(concurrency=1) as worker:
        await started.wait()
        await bench.store.cancel([ids[1001]])
        await bench.reach(ids[1001], JobState.CANCELLED)
        go.set()
        await bench.reach(ids[1099], JobState.DONE)
        await worker.idle.wait()
    assert sorted(ran) == [number for number in range(1100) if number != 1001]


# ── lost leases ─────────────────────────────────────────────────────────────


async def test_a_lost_lease_drops_its_jobs(bench: Bench) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def slow() -> None:
        if current_job().attempt > 1:
            return
        started.set()
        try:
            await asyncio.sleep(WAIT)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    bench.events = []
    id = await bench.enqueue(slow)
    async with bench.worker() as worker:
        await started.wait()
        # Another worker takes the lease over, as after a long silence.
        await bench.store.abandon(worker.id, "silence")
        await bench.store.reap(new_worker_id(), timedelta(0))
        await cancelled.wait()
        job = await bench.reach(id, JobState.DONE)
    assert job.attempt == 2
    assert "lease.lost" in [name for name, _ in bench.events]


async def test_a_late_result_is_refused_and_counted(bench: Bench) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def slow() -> None:
        started.set()
        await go.wait()

    id = await bench.enqueue(slow)
    events = bench.events = Events()
    # Heartbeats too rare to hear of the loss: the settlement hears it.
    async with bench.worker(heartbeat="10m", lease="1h", reap="1h") as worker:
        await started.wait()
        await bench.store.abandon(worker.id, "silence")
        [orphan] = await bench.store.reap(new_worker_id(), timedelta(hours=1))
        go.set()
        await events.heard("lease.lost")
        assert worker.counters.lost == 1
        assert (await bench.get(id)).state is JobState.RUNNING
        assert orphan.jobs[0][1].id == id


# ── draining ────────────────────────────────────────────────────────────────


async def test_drain_lets_running_jobs_finish_and_hands_back_the_rest(bench: Bench) -> None:
    started, go = Tally(), asyncio.Event()

    @bench.app.task
    async def slow() -> None:
        started.add()
        await go.wait()

    ids = await bench.enqueue_many(slow, [()] * 5)
    async with bench.worker(concurrency=2, drain="60s") as worker:
        await started.reach(2)
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(0)
        go.set()
        await draining
    jobs = [await bench.get(id) for id in ids]
    assert sorted(job.state for job in jobs) == sorted([JobState.DONE] * 2 + [JobState.READY] * 3)
    assert all(job.failures == job.crashes == 0 for job in jobs)


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_drain_hands_back_what_does_not_finish_without_charge(bench: Bench, kind: str) -> None:
    begun, over = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    @bench.app.task
    async def slow() -> None:
        await asyncio.sleep(WAIT)

    @bench.app.task
    def slow_thread() -> None:
        threads.append(threading.current_thread())
        begun.set()
        over.wait(WAIT)

    bench.app.tasks.update(process_tasks.app.tasks)
    task = {"async": slow, "thread": slow_thread, "process": process_tasks.sleep_for_ever}[kind]
    id = await bench.enqueue(task)
    events = bench.events = Events()
    async with bench.worker(drain="50ms"):
        await events.heard("attempt.started")
        if kind == "thread":
            assert await asyncio.to_thread(begun.wait, WAIT)
    job = await bench.get(id)
    over.set()
    for thread in threads:
        thread.join(WAIT)
    assert (job.state, job.failures, job.crashes, job.attempt) == (JobState.READY, 0, 0, 1)


async def test_hurry_ends_a_drain_at_once(bench: Bench) -> None:
    started = asyncio.Event()

    @bench.app.task
    async def slow() -> None:
        started.set()
        await asyncio.sleep(WAIT)

    id = await bench.enqueue(slow)
    async with asyncio.timeout(WAIT / 2), bench.worker(drain="1h") as worker:
        await started.wait()
        draining = asyncio.create_task(worker.drain())
        await asyncio.sleep(0)
        worker.hurry()
        await draining
    assert (await bench.get(id)).state is JobState.READY


async def test_a_quiet_worker_claims_nothing(bench: Bench) -> None:
    @bench.app.task
    async def quick() -> None: ...

    async with bench.worker() as worker:
        await worker.idle.wait()
        worker.quiet()
        id = await bench.enqueue(quick)
        async with bench.worker() as other:
            await bench.reach(id, JobState.DONE)
            assert (worker.counters.claimed, other.counters.claimed) == (0, 1)


# ── suspects ────────────────────────────────────────────────────────────────


async def test_suspects_run_alone(bench: Bench) -> None:
    company: list[int] = []

    @bench.app.task
    async def step() -> None:
        await asyncio.sleep(0.005)
        company.append(worker.running)

    ids = await bench.enqueue_many(step, [()] * 5)
    # A worker that claims all of them and dies.
    from headrace.model.lease import Ask, new_token

    dead = new_worker_id()
    lease = await bench.store.claim(Ask(dead, ("default",), 10, timedelta(hours=1), new_token()))
    assert lease is not None
    assert len(lease.jobs) == 5
    await bench.store.abandon(dead, "killed by SIGKILL")
    async with bench.worker() as worker:
        for id in ids:
            job = await bench.reach(id, JobState.DONE)
            assert (job.attempt, job.failures, job.crashes) == (2, 0, 0)
    assert company == [1] * 5


async def test_a_process_that_dies_is_charged_to_its_own_job(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    id = await bench.enqueue(process_tasks.crash)
    other = await bench.enqueue(process_tasks.double, 21)
    async with bench.worker():
        job = await bench.reach(id, JobState.DEAD)
        fine = await bench.reach(other, JobState.DONE)
    assert (job.note, job.crashes, job.failures) == ("worker_lost", 3, 0)
    assert "SIGSEGV" in job.history[0].message
    assert (fine.crashes, process_tasks.double.codec.decode_result(fine.result)) == (0, 42)


async def test_process_tasks_tell_their_failures(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    job = await bench.work(process_tasks.fail)
    assert (job.state, job.history[0].kind) == (JobState.DEAD, "ValueError")
    assert "in fail" in job.history[0].traceback
    job = await bench.work(process_tasks.who)
    assert process_tasks.who.codec.decode_result(job.result) == str(job.id)
    job = await bench.work(process_tasks.in_a_loop)
    assert process_tasks.in_a_loop.codec.decode_result(job.result) == "looped"


# ── events ──────────────────────────────────────────────────────────────────


async def test_events_tell_the_story(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    bench.events = []

    @bench.app.task
    async def in_loop() -> None: ...

    @bench.app.task
    def in_thread() -> int:
        return 1

    for task in (in_loop, in_thread):
        await bench.enqueue(task)
    await bench.enqueue(process_tasks.double, 1)
    async with bench.worker() as worker:
        await worker.idle.wait()
    names = [name for name, _ in bench.events]
    assert names[0] == "worker.joined"
    assert names[-1] == "worker.left"
    assert {name: names.count(name) for name in ("attempt.started", "attempt.ended")} == {
        "attempt.started": 3,
        "attempt.ended": 3,
    }
    assert {"lease.claimed", "job.settled"} <= set(names)


async def test_a_task_that_cannot_be_stopped_is_handed_back_all_the_same(bench: Bench) -> None:
    started, over = asyncio.Event(), asyncio.Event()

    @bench.app.task
    async def immortal() -> None:
        started.set()
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    id = await bench.enqueue(immortal)
    async with bench.worker(drain="0s", kill_grace="50ms"):
        await started.wait()
    job = await bench.get(id)
    over.set()
    assert (job.state, job.failures, job.crashes) == (JobState.READY, 0, 0)
    await asyncio.sleep(0.01)


async def test_a_worker_of_processes_claims_what_they_can_run(bench: Bench) -> None:
    bench.app.tasks.update(process_tasks.app.tasks)
    slots = max(2, 2 * (os.cpu_count() or 1))
    ids = [await bench.enqueue(process_tasks.sleep_for_ever) for _ in range(slots + 5)]
    async with bench.worker(concurrency=slots + 5) as worker:
        await until(lambda: worker.running == slots)
        states = Counter([(await bench.get(id)).state for id in ids])
        assert states == {JobState.RUNNING: slots, JobState.READY: 5}
        worker.hurry()
