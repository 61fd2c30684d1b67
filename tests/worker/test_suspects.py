"""Suspects of a supervised worker: beside other work, never charged with a neighbour's crash, found when they are the cause."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conftest import nothing_left_behind
from headrace.model.job import Failure, JobId, JobState
from headrace.model.lease import Ask, Lease, new_token, new_worker_id
from headrace.model.outcome import Again
from headrace.supervisor.page import SharedPageView
from headrace.task.task import Task
from headrace.worker import Worker
from headrace.worker.hand_back import hand_back_unstarted
from headrace.worker.shared_page import PageEntry, SharedPage, read_holdings
from worker import suspect_app as tasks
from worker.harness import WAIT, Bench, until


def entries(view: SharedPageView) -> list[PageEntry]:
    """The leases on the page."""
    return read_holdings(view.holdings).entries


class Supervised(Bench):
    """Workers with a board, as a supervisor's children have one."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(app="worker.suspect_app:app", **settings)
        self.app = tasks.app
        self.folder = folder

    @asynccontextmanager
    async def watched(self, **settings: Any) -> AsyncGenerator[tuple[Worker, SharedPageView]]:
        view = SharedPageView()
        page = SharedPage(view.fd)
        page.show_worker(new_worker_id())
        own = self.settings.replace(**settings) if settings else self.settings
        async with Worker(self.app.tasks, self.store, own, queues=("default",), page=page) as worker:
            yield worker, view
        page.close()
        view.close()

    async def claim(self, limit: int = 100) -> Lease:
        lease = await self.store.claim(Ask(new_worker_id(), ("default",), limit, timedelta(hours=1), new_token()))
        assert lease is not None
        return lease

    async def make_suspects(self, task: Task[..., Any], *calls: tuple[Any, ...], losses: int = 0) -> list[JobId]:
        ids = await self.enqueue_many(task, list(calls))
        lease = await self.claim()
        assert len(lease.jobs) == len(calls)
        await self.store.settle(lease.token, [(position, Again(0, 0, suspect=True)) for position in range(len(calls))])
        for attempt in range(2, 2 + losses):
            failure = Failure(attempt, "worker_lost", "beside others", "", datetime.now(UTC))
            for alone in [await self.claim(1) for _ in ids]:
                await self.store.settle(alone.token, [(0, Again(0, 0, suspect=True, failure=failure))])
        return ids

    def started(self) -> dict[int, int]:
        """Number → pid, of those that have started."""
        found = [path.name.split("-") for path in self.folder.iterdir() if "-" in path.name]
        return {int(number): int(pid) for number, _, pid in found}

    def open(self) -> None:
        (self.folder / "open").touch()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Supervised]:
    async with nothing_left_behind():
        yield Supervised(tmp_path)


def pid_of(job: Any) -> int:
    return int(tasks.quick.codec.decode_result(job.result))


async def test_suspects_run_beside_each_other_and_beside_other_work(bench: Supervised) -> None:
    folder = str(bench.folder)
    ids = await bench.make_suspects(tasks.wait, *[(folder, number) for number in range(6)])
    async with bench.watched(concurrency=20):
        # All of them run at once, though none has ended, and other jobs do not wait for them.
        await until(lambda: len(bench.started()) == 6)
        other = await bench.enqueue(tasks.quick)
        await bench.reach(other, JobState.DONE)
        bench.open()
        jobs = [await bench.reach(id, JobState.DONE) for id in ids]
    assert {(job.failures, job.crashes) for job in jobs} == {(0, 0)}
    # The first two had processes of their own.
    assert len({pid_of(job) for job in jobs} - {os.getpid()}) == 2


async def test_a_poison_job_kills_a_child_and_not_the_worker(bench: Supervised) -> None:
    [id] = await bench.make_suspects(tasks.poison, ())
    async with bench.watched() as (worker, _):
        job = await bench.reach(id, JobState.DEAD)
        assert worker.counters.crashed == 3
    assert (job.note, job.crashes, job.failures) == ("worker_lost", 3, 0)


async def test_a_suspect_of_a_thread_task_runs_in_a_child(bench: Supervised) -> None:
    [id] = await bench.make_suspects(tasks.in_a_thread, ())
    async with bench.watched():
        assert pid_of(await bench.reach(id, JobState.DONE)) != os.getpid()


async def test_a_suspect_that_fails_has_failed(bench: Supervised) -> None:
    [id] = await bench.make_suspects(tasks.fails, ())
    async with bench.watched():
        job = await bench.reach(id, JobState.DEAD)
    assert (job.history[0].kind, job.failures, job.crashes) == ("ValueError", 1, 0)


async def test_async_suspects_of_one_child_share_its_loop(bench: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.worker.executor.SUSPECTS", 1)
    ids = await bench.make_suspects(tasks.loops, (), ())
    async with bench.watched():
        found = [tasks.loops.codec.decode_result((await bench.reach(id, JobState.DONE)).result) for id in ids]
    assert found[0] == found[1]


async def test_a_task_that_needs_the_workers_process_runs_there(bench: Supervised) -> None:
    [id] = await bench.make_suspects(tasks.completes, ())
    async with bench.watched():
        job = await bench.reach(id, JobState.DONE)
        [again] = await bench.make_suspects(tasks.completes, ())
        await bench.reach(again, JobState.DONE)
    assert "this store cannot complete" in tasks.completes.codec.decode_result(job.result)
    assert (job.failures, job.crashes) == (0, 0)


async def test_a_child_that_cannot_start_leaves_the_suspect_to_the_worker(bench: Supervised) -> None:
    [id] = await bench.make_suspects(tasks.quick, ())
    async with bench.watched(app="worker.no_such_module:app"):
        job = await bench.reach(id, JobState.DONE)
    assert pid_of(job) == os.getpid()


async def test_a_suspect_among_the_slots_lets_others_in_after_a_while(bench: Supervised) -> None:
    """A task with limits cannot run in a child."""
    ids = await bench.make_suspects(tasks.limited, (str(bench.folder), 0))
    async with bench.watched() as (_, view):
        await until(lambda: len(bench.started()) == 1)
        [alone] = entries(view)
        assert alone.first == alone.size == 1, "the worker's death would be its own crash"
        other = await bench.enqueue(tasks.quick)
        await bench.reach(other, JobState.DONE)
        [company] = [entry for entry in entries(view) if entry.token == alone.token]
        assert (company.first, company.suspect, company.noted) == (0, True, True)
        bench.open()
        job = await bench.reach(ids[0], JobState.DONE)
    assert pid_of(job) == os.getpid()


async def test_a_suspect_that_was_in_too_many_crashes_runs_alone(bench: Supervised) -> None:
    ids = await bench.make_suspects(tasks.wait, (str(bench.folder), 0), losses=3)
    async with bench.watched() as (_, view):
        await until(lambda: len(bench.started()) == 1)
        assert bench.started() == {0: os.getpid()}
        [entry] = entries(view)
        assert entry.first == entry.size == 1
        bench.open()
        await bench.reach(ids[0], JobState.DONE)


@pytest.mark.parametrize("task", [tasks.wait, tasks.limited])
async def test_a_suspect_that_runs_beside_others_is_not_charged_with_the_workers_death(
    bench: Supervised, task: Task[..., Any]
) -> None:
    [id] = await bench.make_suspects(task, (str(bench.folder), 0))
    async with bench.watched() as (_, view):
        await until(lambda: any(entry.noted for entry in entries(view)))
        # The supervisor's part, as if the worker had died just now.
        await hand_back_unstarted(bench.store, entries(view), "killed by SIGSEGV")
        job = await bench.get(id)
        assert (job.state, job.crashes, job.failures) == (JobState.READY, 0, 0)
        assert job.history[0].message.startswith("killed by SIGSEGV; other jobs ran beside this one")
        bench.open()
        await bench.reach(id, JobState.DONE)


async def test_a_suspect_that_waits_is_not_charged_either(bench: Supervised) -> None:
    folder = str(bench.folder)
    ids = await bench.make_suspects(tasks.wait, *[(folder, number) for number in range(3)], losses=1)
    async with bench.watched() as (_, view):
        # One loss beside others: these wait for a process of their own, however long that takes.
        await until(lambda: len(bench.started()) == 2 and len(entries(view)) == 3)
        await hand_back_unstarted(bench.store, entries(view), "killed by SIGSEGV")
        jobs = [await bench.get(id) for id in ids]
        assert [len(job.history) for job in jobs] == [2, 2, 1]
        assert {job.crashes for job in jobs} == {0}
        bench.open()
        for id in ids:
            await bench.reach(id, JobState.DONE)


async def test_a_drain_hands_suspects_back_as_suspects(bench: Supervised) -> None:
    folder = str(bench.folder)
    ids = await bench.make_suspects(tasks.wait, *[(folder, number) for number in range(3)], losses=1)
    async with bench.watched() as (worker, view):
        await until(lambda: len(bench.started()) == 2 and len(entries(view)) == 3)
        await worker.drain(0)
    jobs = [await bench.get(id) for id in ids]
    assert {(job.state, job.crashes, job.failures) for job in jobs} == {(JobState.READY, 0, 0)}
    assert (await bench.claim()).suspect


async def test_an_idle_child_ends(bench: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.worker.executor.IDLE", 0.05)
    [id] = await bench.make_suspects(tasks.quick, ())
    async with bench.watched():
        pid = pid_of(await bench.reach(id, JobState.DONE))
        await until(lambda: not Path(f"/proc/{pid}").exists())
        [later] = await bench.make_suspects(tasks.quick, ())
        assert pid_of(await bench.reach(later, JobState.DONE)) not in {pid, os.getpid()}


# ── what had not started ────────────────────────────────────────────────────


async def test_jobs_that_a_dead_worker_had_not_started_are_no_suspects(bench: Supervised) -> None:
    ids = await bench.enqueue_many(tasks.quick, [()] * 10)
    lease = await bench.claim()
    await hand_back_unstarted(bench.store, [PageEntry(lease.token, 4, 10)], "killed")
    again = await bench.claim()
    assert not again.suspect
    assert [job.id for job in again.jobs] == ids[4:]
    assert {(job.failures, job.crashes) for job in again.jobs} == {(0, 0)}


async def test_the_board_tells_what_has_not_started(bench: Supervised) -> None:
    started: list[JobId] = []
    gate = asyncio.Event()

    @bench.app.task(name="board-mixed")
    async def mixed(number: int) -> None:
        from headrace.task.context import current_job

        started.append(current_job().id)
        if number >= 100:
            await gate.wait()

    try:
        ids = await bench.enqueue_many(mixed, [(number,) for number in range(400)])
        async with bench.watched(concurrency=2, lease="1h", heartbeat="1m") as (worker, view):
            await until(lambda: worker.running == 2 and worker.waiting)
            claimed = worker.counters.claimed
            free = 0
            for entry in entries(view):
                free += entry.size - entry.first
            # Some are known not to have started; those that have are never among them.
            assert 0 < free <= claimed - len(started)
            await hand_back_unstarted(bench.store, entries(view), "killed")
            states = {id: (await bench.get(id)).state for id in started[-2:]}
            assert set(states.values()) == {JobState.RUNNING}
            gate.set()
            for id in ids:
                await bench.reach(id, JobState.DONE)
    finally:
        del bench.app.tasks["board-mixed"]


async def test_a_job_that_had_failed_before_keeps_its_counts(bench: Supervised) -> None:
    """It cannot be handed back by the board, which knows no counts of ordinary leases."""
    ids = await bench.enqueue_many(tasks.wait, [(str(bench.folder), 1)])
    lease = await bench.claim()
    await bench.store.settle(lease.token, [(0, Again(2, 0))])
    async with bench.watched() as (_, view):
        await until(lambda: len(bench.started()) == 1)
        assert all(entry.first == entry.size for entry in entries(view))
        bench.open()
        assert (await bench.reach(ids[0], JobState.DONE)).failures == 2


def test_a_place_on_the_board_is_used_again() -> None:
    view = SharedPageView()
    page = SharedPage(view.fd)
    assert not view.holdings, "a worker that has not reached its store holds nothing"
    worker = new_worker_id()
    page.show_worker(worker)
    assert read_holdings(view.holdings).worker == worker
    first, second = new_token(), new_token()
    place = page.add(PageEntry(first, 0, 5))
    page.mark(place, 3)
    assert entries(view) == [PageEntry(first, 3, 5)]
    page.remove(place)
    assert entries(view) == []
    assert page.add(PageEntry(second, 1, 1)) == place
    suspect = PageEntry(new_token(), 0, 1, 7, 2, 1, suspect=True, noted=True)
    page.write(page.add(suspect), suspect)
    assert entries(view) == [PageEntry(second, 1, 1), suspect]
    page.rename(place, first)
    assert entries(view)[0].token == first
    page.close()
    view.close()


# ── what a worker says of itself ────────────────────────────────────────────


async def say(bench: Bench, worker: Worker, *expected: str) -> None:
    """Wait until the worker's presence says just this."""
    async with asyncio.timeout(WAIT):
        while True:
            found = next((each for each in await bench.store.workers() if each.id == worker.id), None)
            if found is not None and found.hindered == expected:
                return
            await asyncio.sleep(0.005)


async def test_a_worker_says_what_keeps_it_from_starting_jobs(bench: Supervised) -> None:
    await bench.make_suspects(tasks.wait, (str(bench.folder), 0), losses=3)
    async with bench.watched(heartbeat="1h", lease="4h") as (worker, _):
        await say(bench, worker, "quarantine")
        bench.open()
        await say(bench, worker)
        worker.quiet()
        await say(bench, worker, "quiet")
