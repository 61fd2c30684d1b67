"""The client: it repeats what is safe to repeat, and waits for many results with one question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from headrace.client.client import Client
from headrace.errors import IdempotencyConflict, JobNotFound, OutcomeUnknown, ResultTimeout, Unavailable, Unsupported
from headrace.model.job import Batch, BatchId, Job, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import DONE
from headrace.model.records import Enqueued
from headrace.store.memory import MemoryStore

JOB = NewJob("t", b"\x92\x90\x80", Lane())


class Flaky(MemoryStore):
    """Fails as told, before or after the work; counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.batches: list[BatchId] = []
        self.asked: list[Sequence[JobId]] = []
        self.on_get: Callable[[], None] = lambda: None

    async def enqueue(self, batch: Batch) -> Enqueued:
        self.batches.append(batch.id)
        if self.before:
            raise self.before.pop(0)
        answer = await super().enqueue(batch)
        if self.after:
            raise self.after.pop(0)
        return answer

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        self.asked.append(ids)
        found = await super().get(ids)
        self.on_get()
        return found


async def finish(store: MemoryStore, count: int = 1) -> None:
    ask = Ask(new_worker_id(), ("default",), count, timedelta(seconds=15), new_token())
    lease = await store.claim(ask)
    assert lease is not None
    await store.settle(lease.token, [(place, DONE) for place in range(len(lease.jobs))])


# ── repeating ────────────────────────────────────────────────────────────────


async def test_a_lost_answer_is_asked_for_again_under_the_same_batch():
    store = Flaky()
    store.after = [OutcomeUnknown("the connection broke")]
    store.before = []
    placed = await Client(store).enqueue([JOB])
    assert len(store.batches) == 2
    assert set(store.batches) == {placed.batch}
    (queue,) = (await store.stats()).queues
    assert queue.ready == 1


async def test_a_store_that_comes_back_is_waited_for():
    store = Flaky()
    store.before = [Unavailable("starting up"), Unavailable("starting up")]
    placed = await Client(store).enqueue([JOB])
    assert (await store.get([placed.id(0)]))[0] is not None
    assert len(set(store.batches)) == 1


async def test_patience_ends():
    store = Flaky()
    store.before = [Unavailable("gone")] * 100
    with pytest.raises(Unavailable, match="gone"):
        await Client(store, patience=0.2).enqueue([JOB])
    assert len(store.batches) < 10
    assert len(set(store.batches)) == 1


async def test_an_unknown_outcome_stays_unknown_when_nobody_answers_any_more():
    store = Flaky()
    store.before = [OutcomeUnknown("broke")] + [Unavailable("gone")] * 100  # type: ignore[list-item]
    with pytest.raises(OutcomeUnknown, match="broke"):
        await Client(store, patience=0.2).enqueue([JOB])


async def test_a_refusal_is_not_repeated():
    store = Flaky()
    store.before = [IdempotencyConflict("t", "k", job_id(new_batch(), 0))]
    with pytest.raises(IdempotencyConflict):
        await Client(store).enqueue([JOB])
    assert len(store.batches) == 1


def test_a_store_without_transactions_says_so():
    with pytest.raises(Unsupported, match="cannot join your transaction"):
        _ = Client(MemoryStore()).transactional


# ── waiting ──────────────────────────────────────────────────────────────────


async def test_all_who_wait_share_one_question():
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB] * 300)
    polled = asyncio.Event()
    store.on_get = lambda: polled.set() if len(store.asked) >= 3 else None
    waiting = [asyncio.create_task(client.finished(placed.id(place), 60)) for place in range(300)]
    await polled.wait()
    assert {len(ids) for ids in store.asked} == {300}
    await finish(store, 300)
    jobs = await asyncio.gather(*waiting)
    assert {job.state for job in jobs} == {JobState.DONE}
    await client.close()


async def test_two_may_wait_for_the_same_job():
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB])
    waiting = [asyncio.create_task(client.finished(placed.id(0), 60)) for _ in range(2)]
    store.on_get = lambda: None
    await asyncio.sleep(0)
    await finish(store)
    one, other = await asyncio.gather(*waiting)
    assert one == other


async def test_a_newcomer_is_answered_without_waiting_for_the_next_round(monkeypatch):
    monkeypatch.setattr("headrace.client.results.FIRST_POLL", 3600)
    monkeypatch.setattr("headrace.client.results.LONGEST_POLL", 3600)
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB, JOB])
    polled = asyncio.Event()
    store.on_get = polled.set
    patient = asyncio.create_task(client.finished(placed.id(1), 60))
    await polled.wait()
    await finish(store, 1)
    assert (await client.finished(placed.id(0), 60)).state is JobState.DONE
    assert [placed.id(0)] in [list(ids) for ids in store.asked]
    patient.cancel()
    await client.close()


async def test_the_job_goes_on_when_nobody_waits_any_longer():
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB])
    with pytest.raises(ResultTimeout, match=r"did not end within 0\.02 s"):
        await client.finished(placed.id(0), 0.02)
    with pytest.raises(ResultTimeout):
        await client.finished(placed.id(0), 0)
    await finish(store)
    assert (await client.finished(placed.id(0), None)).state is JobState.DONE


async def test_an_unknown_job_is_not_waited_for():
    with pytest.raises(JobNotFound, match="no job"):
        await Client(MemoryStore()).finished(job_id(new_batch(), 0), 60)


async def test_a_store_that_is_away_for_a_while_does_not_end_the_wait():
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB])
    failures = [Unavailable("away"), OutcomeUnknown("away")]

    def fail() -> None:
        if failures:
            raise failures.pop()

    store.on_get = fail
    waiting = asyncio.create_task(client.finished(placed.id(0), 60))
    await asyncio.sleep(0)
    await finish(store)
    assert (await waiting).state is JobState.DONE
    assert failures == []


async def test_an_error_reaches_everybody_who_waits():
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB, JOB])

    def fail() -> None:
        raise RuntimeError("a bug")

    store.on_get = fail
    waiting = [client.finished(placed.id(place), 60) for place in range(2)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["a bug", "a bug"]


async def test_closing_tells_those_who_wait():
    store = Flaky()
    client = Client(store)
    placed = await client.enqueue([JOB])
    polled = asyncio.Event()
    store.on_get = polled.set
    waiting = asyncio.create_task(client.finished(placed.id(0), None))
    await polled.wait()
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await waiting
