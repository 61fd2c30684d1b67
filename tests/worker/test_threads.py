"""Fewer threads than slots: how many sync jobs run, and what the worker claims while all threads are taken."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Band
from headrace.task.context import current_job
from headrace.task.task import Task
from headrace.worker import Duties, Worker
from headrace.worker.attempt import Attempt
from headrace.worker.claim_scope import ClaimScope, KindRoom
from headrace.worker.state import WorkerState
from headrace.worker.threads import ThreadSlots
from worker.harness import WAIT, Bench, until


class Gate:
    """Holds sync jobs in their threads."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.now = self.most = 0

    def hold(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self._open.wait(WAIT)
        with self._lock:
            self.now -= 1

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Any:
    gate = Gate()
    yield gate
    gate.open()


async def put(bench: Bench, queue: str, task: Task[..., Any], count: int) -> list[JobId]:
    batch = Batch(new_batch(), [NewJob(task.name, task.codec.encode((), {}), Lane(queue=queue))] * count)
    await bench.store.enqueue(batch)
    return [job_id(batch.id, ord) for ord in range(count)]


@asynccontextmanager
async def serving(bench: Bench, *queues: str, **settings: Any) -> AsyncGenerator[Worker]:
    worker = Worker(bench.app.tasks, bench.store, bench.settings.replace(**settings), queues=queues, duties=Duties())
    async with worker:
        yield worker


async def test_sync_tasks_use_no_more_threads_than_the_setting_allows(bench: Bench, gate: Gate) -> None:
    @bench.app.task
    def hold() -> None:
        gate.hold()

    ids = await put(bench, "default", hold, 30)
    async with serving(bench, "default", concurrency=100, threads=4) as worker:
        await until(lambda: gate.now == 4)
        # All its tasks are sync, so it claims nothing that could not start.
        assert worker.figures().slots == 4
        assert worker.counters.claimed == 4
        assert worker.waiting == 0
        gate.open()
        for id in ids:
            await bench.reach(id, JobState.DONE)
    assert gate.most == 4
    assert worker.counters.released == 0


async def test_the_number_of_slots_is_a_limit_too(bench: Bench, gate: Gate) -> None:
    @bench.app.task
    def hold() -> None:
        gate.hold()

    await put(bench, "default", hold, 10)
    async with serving(bench, "default", concurrency=3) as worker:
        await until(lambda: gate.now == 3)
        assert worker.figures().threads == 3
        gate.open()


async def test_full_threads_do_not_hold_up_async_jobs_of_other_queues(bench: Bench, gate: Gate) -> None:
    @bench.app.task(queue="sync")
    def hold() -> None:
        gate.hold()

    @bench.app.task(queue="quick")
    async def quick() -> None: ...

    held = await put(bench, "sync", hold, 200)
    async with serving(bench, "sync", "quick", concurrency=20, threads=2) as worker:
        await until(lambda: gate.now == 2)
        for _ in range(5):
            for id in await put(bench, "quick", quick, 50):
                await bench.reach(id, JobState.DONE)
        assert gate.now == gate.most == 2
        gate.open()
        for id in held:
            await bench.reach(id, JobState.DONE)
        async with asyncio.timeout(WAIT):
            await worker.idle.wait()
    assert gate.most == 2


async def test_full_threads_claim_few_jobs_of_a_queue_that_mixes_kinds(bench: Bench, gate: Gate) -> None:
    @bench.app.task
    def hold() -> None:
        gate.hold()

    @bench.app.task
    async def quick() -> None: ...

    ids = [*await put(bench, "default", quick, 5), *await put(bench, "default", hold, 40)]
    ids += await put(bench, "default", quick, 5)
    async with serving(bench, "default", concurrency=100, threads=4) as worker:
        await until(lambda: gate.now == 4)
        assert worker.figures().slots == 100
        # Not all 40 of them: four run, and a few wait here for a moment.
        assert worker.waiting <= 30
        gate.open()
        for id in ids:
            await bench.reach(id, JobState.DONE)
    assert gate.most == 4


async def test_the_worker_says_that_its_threads_are_taken(bench: Bench, gate: Gate) -> None:
    @bench.app.task(queue="sync")
    def hold() -> None:
        gate.hold()

    @bench.app.task(queue="quick")
    async def quick() -> None: ...

    await put(bench, "sync", hold, 3)
    async with serving(bench, "sync", "quick", concurrency=20, threads=2):

        async def tells(*words: str) -> None:
            async with asyncio.timeout(WAIT):
                while [each.hindered for each in await bench.store.workers()] != [words]:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.01)

        await tells("threads")
        gate.open()
        await tells()


# ── the line of the threads ─────────────────────────────────────────────────


async def test_each_waiting_job_gets_a_thread_while_one_is_free(bench: Bench, gate: Gate) -> None:
    @bench.app.task
    def hold() -> None:
        gate.hold()

    async with serving(bench, "default", concurrency=8) as worker:
        for count in (1, 3, 4):
            before = gate.now
            await put(bench, "default", hold, count)
            await until(lambda wanted=before + count: gate.now == wanted)
        assert worker.figures().running_thread == 8
        gate.open()
        async with asyncio.timeout(WAIT):
            await worker.idle.wait()
        assert worker.figures().running_thread == 0


async def test_sleeping_threads_take_over_from_one_that_waits(bench: Bench, gate: Gate) -> None:
    """All threads have slept, and a group of jobs begins with quick ones."""

    @bench.app.task
    def hold() -> None:
        gate.hold()

    @bench.app.task
    def quick() -> None: ...

    async with serving(bench, "default", concurrency=4) as worker:
        for id in await put(bench, "default", quick, 40):
            await bench.reach(id, JobState.DONE)
        async with asyncio.timeout(WAIT):
            await worker.idle.wait()
        await put(bench, "default", quick, 2)
        await put(bench, "default", hold, 4)
        await until(lambda: gate.now == 4)
        gate.open()


@pytest.fixture
def all_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs count as brief on the slowest machine, unless one holds up the line."""
    monkeypatch.setattr("headrace.worker.threads.BRIEF", WAIT)


def threads_of(worker: Worker) -> ThreadSlots:
    return worker._executor.threads


async def fall_asleep(threads: ThreadSlots) -> None:
    await until(lambda: threads.unfinished == 0 and len(threads._asleep) == len(threads._slots))


async def run_brief_jobs(bench: Bench, worker: Worker, quick: Task[..., Any]) -> None:
    """Go on until the threads count jobs as brief. A thread may be too slow for a streak, while others take the jobs."""
    threads = threads_of(worker)
    while threads._spreads:
        for id in await put(bench, "default", quick, 100):
            await bench.reach(id, JobState.DONE)
    await fall_asleep(threads)


@pytest.mark.usefixtures("all_are_brief")
async def test_jobs_that_come_one_by_one_run_in_the_thread_that_slept_least(bench: Bench, gate: Gate) -> None:
    ran: list[int] = []

    @bench.app.task
    def hold() -> None:
        gate.hold()

    @bench.app.task
    def quick() -> None:
        ran.append(threading.get_ident())

    async with serving(bench, "default", concurrency=4) as worker:
        await put(bench, "default", hold, 4)
        await until(lambda: gate.now == 4)
        gate.open()
        for _ in range(10):
            await fall_asleep(threads_of(worker))
            [id] = await put(bench, "default", quick, 1)
            await bench.reach(id, JobState.DONE)
    assert len(ran) == 10
    assert len(set(ran)) == 1


@pytest.mark.usefixtures("all_are_brief")
async def test_jobs_that_wait_get_all_threads_after_brief_ones(bench: Bench, gate: Gate) -> None:
    @bench.app.task
    def hold() -> None:
        gate.hold()

    @bench.app.task
    def quick() -> None: ...

    async with serving(bench, "default", concurrency=4) as worker:
        await run_brief_jobs(bench, worker, quick)
        await put(bench, "default", hold, 4)
        await until(lambda: gate.now == 4)
        gate.open()


@pytest.mark.usefixtures("all_are_brief")
async def test_brief_jobs_in_front_of_one_that_waits_are_settled(bench: Bench, gate: Gate) -> None:
    @bench.app.task
    def hold() -> None:
        gate.hold()

    @bench.app.task
    def quick() -> None: ...

    async with serving(bench, "default", concurrency=4, threads=1) as worker:
        await run_brief_jobs(bench, worker, quick)
        job = [NewJob(task.name, task.codec.encode((), {}), Lane()) for task in (quick, quick, hold, quick)]
        batch = Batch(new_batch(), job)
        await bench.store.enqueue(batch)
        await until(lambda: gate.now == 1)
        for ord in range(2):
            await bench.reach(job_id(batch.id, ord), JobState.DONE)
        assert gate.now == 1
        gate.open()


class Interleaved(deque[Attempt]):
    """A line that lets `meanwhile` happen between the two steps of a job that is put back."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.empty = threading.Event()
        """A thread has found it empty."""
        self._meanwhile = meanwhile

    def popleft(self) -> Attempt:
        try:
            return super().popleft()
        except IndexError:
            self.empty.set()
            raise

    def appendleft(self, attempt: Attempt, /) -> None:
        self._meanwhile()
        super().appendleft(attempt)


async def test_a_job_that_stays_in_line_is_not_forgotten(bench: Bench, gate: Gate) -> None:
    """A thread looks at the line at the moment at which a job is removed and put back."""
    ran = threading.Event()

    @bench.app.task
    def hold() -> None:
        gate.hold()

    @bench.app.task
    def quick() -> None:
        ran.set()

    async with serving(bench, "default", concurrency=2, threads=1) as worker:
        threads = worker._executor.threads

        def meanwhile() -> None:
            gate.open()
            assert line.empty.wait(WAIT)

        line = threads._line = Interleaved(meanwhile)
        await put(bench, "default", hold, 1)
        await until(lambda: gate.now == 1)
        [attempt] = threads.under_way()
        line.empty.clear()
        known = worker._state.known(quick.name)
        assert known is not None
        attempt.held.attempts.append(Attempt(attempt.held, 1, attempt.job, known))
        attempt.held.jobs.append(attempt.held.jobs[0])
        attempt.held.open += 1
        threads.put([attempt.held.attempts[1]])  # type: ignore[list-item]
        assert threads.take_back(0.0) == []
        await asyncio.to_thread(ran.wait, WAIT)
        assert ran.is_set()


async def test_jobs_of_a_thread_share_no_context(bench: Bench) -> None:
    colour: ContextVar[str] = ContextVar("colour", default="none")
    odd: ContextVar[object] = ContextVar("odd", default=None)

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("cannot be compared")

        __hash__ = None  # type: ignore[assignment]

    colours: list[str] = []
    ids: list[JobId] = []

    @bench.app.task
    def paint(value: str) -> None:
        colours.append(colour.get())
        ids.append(current_job().id)
        colour.set(value)
        if value == "odd":
            odd.set(Odd())

    jobs = await bench.enqueue_many(paint, [("red",), ("odd",), ("blue",), ("",)])
    async with serving(bench, "default", threads=1):
        for id in jobs:
            await bench.reach(id, JobState.DONE)
    assert colours == ["none"] * 4
    assert ids == jobs


# ── the choice of queues ────────────────────────────────────────────────────


@pytest.fixture
def scope(bench: Bench) -> ClaimScope:
    @bench.app.task(queue="sync", name="sync")
    def sync() -> None: ...

    @bench.app.task(queue="quick", name="quick")
    async def quick() -> None: ...

    @bench.app.task(queue="mixed", name="mixed_sync")
    def mixed_sync() -> None: ...

    @bench.app.task(queue="mixed", name="mixed_quick")
    async def mixed_quick() -> None: ...

    queues = ("sync", "quick", "mixed")
    return ClaimScope(WorkerState(bench.app.tasks, bench.store, bench.settings, id=None, queues=queues))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("room", "ahead", "queues"),
    [
        (KindRoom(4, 3, 0), 0, ("sync", "quick", "mixed")),
        (KindRoom(4, 4, 0), 0, ("quick", "mixed")),
        (KindRoom(4, 4, 0), 5, ("sync", "quick", "mixed")),
        (KindRoom(4, 4, 2), 0, ("quick",)),
    ],
)
async def test_queues_are_left_out_while_no_thread_is_free(
    scope: ClaimScope, room: KindRoom, ahead: int, queues: tuple[str, ...]
) -> None:
    assert scope.narrow(50, ahead, {"thread": room}) > 0
    assert scope.queues == queues
    assert scope.narrowed == (len(queues) < 3)
    bands = (Band(5, 9, 3), Band(1, 4, 2, queues=("sync", "quick")), Band(0, 0, 1, queues=("sync",)))
    if queues == ("quick",):
        assert scope.bands(bands) == (bands[0], Band(1, 4, 2, queues=("quick",)))
    assert scope.narrow(50, 0, {}) == 50
    assert scope.bands(bands) == bands
