"""Open hours at work: a closed queue starts nothing, its jobs say why, and it opens by the store's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.errors import OutcomeUnknown
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Band, Lease, new_token, new_worker_id
from headrace.policy.explain.answer import Explanation, Reason
from headrace.policy.explain.explain import look
from headrace.store.memory import MemoryStore
from headrace.task.task import Task
from headrace.testing.clock import FakeClock
from headrace.worker import Duties, Worker
from headrace.worker.open_queues import OpenNow
from worker.harness import Bench

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
NIGHT = NOON.replace(hour=22)


@pytest.fixture
def noon() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def bench(noon: FakeClock) -> Bench:
    made = Bench(MemoryStore(clock=noon))
    made.app.queue("nightly", open="22:00-06:00")
    return made


def worker_of(bench: Bench) -> Worker:
    duties = Duties(queues=bench.app.queues)
    return Worker(bench.app.tasks, bench.store, bench.settings, queues=("nightly", "default"), duties=duties)


async def why(bench: Bench, id: JobId, *, app: bool = True) -> Explanation:
    found = await look(bench.store, id, lambda _: None, bench.app.queues.get if app else lambda _: None)
    assert found is not None
    return found[1]


async def put(bench: Bench, task: Task[..., Any], queue: str, **using: Any) -> JobId:
    batch = Batch(new_batch(), [NewJob(task.name, task.codec.encode((), {}), Lane(queue=queue), **using)])
    await bench.store.enqueue(batch)
    return job_id(batch.id, 0)


async def test_a_closed_queue_starts_nothing_until_it_opens(bench: Bench, noon: FakeClock):
    async def work() -> None: ...

    task = bench.app.task(name="work")(work)
    nightly, other = await put(bench, task, "nightly"), await put(bench, task, "default")
    async with worker_of(bench) as worker:
        await bench.reach(other, JobState.DONE)
        await worker.idle.wait()
        assert (await bench.get(nightly)).state is JobState.READY
        said = await why(bench, nightly)
        assert (said.reason, said.until) == (Reason.CLOSED, NIGHT)
        assert said.sentence == (
            "queue nightly is closed until 2026-11-16 22:00:00 UTC (in 10h): it is open 22:00-06:00"
        )
        noon.advance(timedelta(hours=10))
        job = await bench.reach(nightly, JobState.DONE)
        assert job.attempt == 1


async def test_the_worker_says_so_to_a_caller_without_the_app(bench: Bench):
    async def work() -> None: ...

    nightly = await put(bench, bench.app.task(name="work")(work), "nightly")
    async with worker_of(bench):
        while not any("closed nightly" in each.hindered for each in await bench.store.workers()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        said = await why(bench, nightly, app=False)
    assert said.reason is Reason.CLOSED
    assert "its workers claim nothing from it outside its open hours" in said.sentence


async def test_a_delayed_job_that_comes_due_while_it_is_closed_says_so(bench: Bench):
    async def work() -> None: ...

    task = bench.app.task(name="work")(work)
    async with worker_of(bench):
        due = await put(bench, task, "nightly", due=NOON + timedelta(hours=1))
        said = await why(bench, due)
    assert said.reason is Reason.SCHEDULED
    assert said.sentence.endswith("and queue nightly is closed then: it is open 22:00-06:00")


# ── the store that the worker sees ───────────────────────────────────────────


class Spy(MemoryStore):
    """Notes what it is asked, and can lose an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Ask] = []
        self.lose = False

    async def claim(self, ask: Ask) -> Lease | None:
        self.asked.append(ask)
        if self.lose:
            raise OutcomeUnknown("the answer was lost")
        return await super().claim(ask)


def ask(*queues: str, **fields: Any) -> Ask:
    return Ask(new_worker_id(), queues, 10, timedelta(seconds=15), new_token(), **fields)


def open_now(at: list[datetime], **hours: str) -> OpenNow:
    app = Bench().app
    for name, text in hours.items():
        app.queue(name, open=text)

    def now() -> float:
        return at[0].timestamp()

    return OpenNow(app.queues, now)


async def test_bands_of_closed_queues_are_left_out():
    store, at = Spy(), [NOON]
    opened = open_now(at, nightly="22:00-06:00").only(store)
    bands = (Band(0, 9, 5, ("nightly",)), Band(0, 9, 5, ("nightly", "day")), Band(0, 0, 5))
    await opened.claim(ask("nightly", "day", bands=bands))
    [narrowed] = store.asked
    assert narrowed.queues == ("day",)
    assert [band.queues for band in narrowed.bands] == [("day",), ()]
    at[0] = NIGHT
    await opened.claim(ask("nightly", "day", bands=bands))
    assert store.asked[1].bands == bands


async def test_with_every_queue_closed_the_store_is_not_asked():
    store, at = Spy(), [NOON]
    opened = open_now(at, nightly="22:00-06:00").only(store)
    assert await opened.claim(ask("nightly")) is None
    assert store.asked == []
    at[0] = NIGHT - timedelta(milliseconds=20)
    assert await opened.wait(["nightly"], 60.0) is False  # until it opens, not for a minute


async def test_a_claim_of_unknown_outcome_is_repeated_though_the_queue_has_closed():
    store, at = Spy(), [NIGHT]
    opened = open_now(at, nightly="22:00-06:00").only(store)
    store.lose = True
    lost = ask("nightly")
    with pytest.raises(OutcomeUnknown):
        await opened.claim(lost)
    store.lose = False
    at[0] = NOON
    await opened.claim(lost)
    assert store.asked == [lost, lost]
    assert await opened.claim(ask("nightly")) is None
    assert len(store.asked) == 2


async def test_a_clock_that_goes_back_closes_it_again():
    at = [NIGHT]
    hours = open_now(at, nightly="22:00-06:00")
    assert hours.closed() == frozenset()
    at[0] = NOON
    assert hours.closed() == {"nightly"}


async def test_without_open_hours_the_store_is_the_same_object():
    store = MemoryStore()
    assert open_now([NOON]).only(store) is store
