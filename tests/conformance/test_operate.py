"""The operator's moves: retry, delete, pause and resume."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.kit import (
    CANCELLED,
    DEAD,
    LONG,
    RELEASE,
    TTL,
    claim,
    counts,
    dump,
    failure,
    find_all,
    ids,
    look,
    new,
    put,
    put_jobs,
    queue_stats,
    run_one,
    settle_all,
    state,
    states,
    take,
)
from headrace.model.gate import Wait
from headrace.model.job import JobState, job_id, new_batch
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Filter, Promoted
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)


# ── retry ────────────────────────────────────────────────────────────────────


async def test_retry_of_a_dead_job(store: Store):
    [id] = await put(store, payload=b"p", options=b"o")
    why = failure()
    await run_one(store, Finish(JobState.DEAD, note="max_attempts", failure=why, failures=5, crashes=2))
    assert await store.retry([id]) == {id}
    job = await look(store, id)
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.READY, 1, 0, 0)
    assert (job.finished_at, job.note, job.run_at, job.history) == (None, None, None, (why,))
    [claimed] = (await take(store)).jobs
    assert (claimed.attempt, claimed.failures, claimed.crashes) == (2, 0, 0)
    assert (claimed.payload, claimed.options) == (b"p", b"o")


async def test_retry_of_done_and_cancelled_jobs(store: Store):
    made = await put(store, 3)
    lease = await take(store, 2)
    await store.settle(lease.token, [(0, Finish(JobState.DONE, result=b"r", result_ttl=LONG)), (1, CANCELLED)])
    await store.cancel(made[2:], "r")
    assert await store.retry(made) == set(made)
    jobs = await store.get(made)
    assert [job and (job.state, job.result, job.note, job.finished_at) for job in jobs] == [
        (JobState.READY, None, None, None)
    ] * 3
    assert [job and job.attempt for job in jobs] == [1, 1, 0]
    assert ids(await claim(store)) == made


async def test_a_retried_job_may_end_again(store: Store):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DONE, result=b"first", result_ttl=S))
    await store.retry([id])
    await run_one(store, Finish(JobState.DONE, result=b"second"))
    job = await look(store, id)
    assert (job.state, job.attempt, job.result, job.result_expired) == (JobState.DONE, 2, b"second", False)
    assert (await queue_stats(store)).done_total == 2
    await store.retry([id])
    await run_one(store, DEAD)
    job = await look(store, id)
    assert (job.state, job.attempt, job.result, job.note) == (JobState.DEAD, 3, None, "max_attempts")
    assert len(await find_all(store)) == 1


async def test_retry_of_a_scheduled_job_makes_it_ready_now(store: Store, clock: FakeClock):
    [fresh] = await put(store, due=TTL)
    [retrying] = await put(store)
    await run_one(store, Again(3, 1, due=TTL, failure=failure()))
    assert await store.retry([fresh, retrying]) == {fresh, retrying}
    lease = await take(store)
    assert [(job.id, job.attempt, job.failures, job.crashes) for job in lease.jobs] == [
        (fresh, 1, 0, 0),
        (retrying, 2, 0, 0),
    ]
    clock.advance(TTL)
    assert await store.promote() == Promoted(0, None)


async def test_retry_leaves_others_alone(store: Store):
    running, ready = await put(store, 2)
    await take(store, 1)
    before = await dump(store)
    assert await store.retry([running, ready, job_id(new_batch(), 0)]) == frozenset()
    assert await store.retry([]) == frozenset()
    assert await dump(store) == before


async def test_a_late_settle_of_an_earlier_life_is_refused(store: Store):
    [id] = await put(store)
    old = await take(store)
    await settle_all(store, old, DEAD)
    await store.retry([id])
    await take(store)
    before = await dump(store)
    assert await store.settle(old.token, [(0, DONE)]) == {0}
    assert await dump(store) == before


async def test_retry_of_many(store: Store):
    made = await put(store, 500)
    await settle_all(store, await take(store, 500), DEAD)
    assert await counts(store) == {"dead": 500}
    assert await store.retry([*made, *made]) == set(made)
    assert await counts(store) == {"ready": 500}
    assert ids(await claim(store, 1000)) == made


# ── delete ───────────────────────────────────────────────────────────────────


async def test_delete_forgets_what_is_not_running(store: Store, clock: FakeClock):
    made = await put_jobs(store, new(), new(), new(), new(), new(), new(due=S))
    lease = await take(store, 4)
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED)])
    assert await store.delete(made) == {made[0], made[1], made[2], made[4], made[5]}
    assert await states(store, made) == [None, None, None, JobState.RUNNING, None, None]
    assert [job.id for job in await find_all(store)] == [made[3]]
    assert await counts(store) == {"running": 1}
    assert await claim(store) is None
    clock.advance(1)
    assert await store.promote() == Promoted(0, None)


@pytest.mark.parametrize("wanted", JobState)
async def test_a_guarded_delete_takes_only_jobs_in_these_states(store: Store, wanted: JobState):
    made = await put_jobs(store, new(), new(), new(), new(), new(), new(), new(due=S))
    lease = await take(store, 5)
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED), (4, DEAD)])
    assert await store.retry([made[4]]) == {made[4]}
    made += await put(store, wait=Wait(made[3]))
    before = await states(store, made)
    assert set(before) == set(JobState)
    fit = {id for id, state in zip(made, before, strict=True) if state is wanted and state is not JobState.RUNNING}
    assert await store.delete(made, states=set[JobState]()) == frozenset()
    assert await store.delete(made, states={wanted}) == fit
    assert await states(store, made) == [None if id in fit else state for id, state in zip(made, before, strict=True)]
    rest = {id for id in made if id not in fit and id != made[3]}
    assert await store.delete(made, states=frozenset(JobState)) == rest


async def test_a_guarded_delete_spares_what_came_back_to_life(store: Store):
    made = await put(store, 3)
    await settle_all(store, await take(store, 3), DEAD)
    await store.retry(made[1:])
    await store.retry(made[2:])
    assert await store.delete(made, states={JobState.DEAD}) == {made[0]}
    assert await counts(store) == {"ready": 2}
    assert ids(await claim(store, 10)) == made[1:]
    assert await store.delete(made, states={JobState.DEAD}) == frozenset()


@pytest.mark.parametrize("end", [DONE, DEAD, CANCELLED])
async def test_a_delete_by_end_spares_a_job_that_has_ended_once_more(store: Store, clock: FakeClock, end: Finish):
    made = await put(store, 4)
    await settle_all(store, await take(store, 3), end)
    [job, *_] = await store.get(made)
    assert job is not None
    assert job.finished_at is not None
    earlier = job.finished_at - timedelta(microseconds=1)
    assert await store.delete(made, ended_by=earlier) == frozenset()
    clock.advance(1)
    await store.retry(made[1:3])
    assert await store.delete(made[1:], ended_by=clock.now()) == frozenset()  # a job that waits has no end
    await settle_all(store, await take(store, 3), end)
    assert await store.delete(made[:3], ended_by=job.finished_at) == {made[0]}
    assert await store.delete(made[1:2], states=frozenset(JobState) - {end.state}, ended_by=clock.now()) == frozenset()
    assert await store.delete(made[1:2], states={end.state}, ended_by=clock.now()) == {made[1]}
    assert await store.delete(made, ended_by=clock.now()) == {*made[2:]}


async def test_totals_outlive_deleted_jobs(store: Store):
    made = await put(store, 2)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, Finish(JobState.DEAD, failure=failure(), failures=1))])
    await store.delete(made)
    stats = await queue_stats(store)
    assert (stats.enqueued_total, stats.done_total, stats.failed_total, stats.dead) == (2, 1, 1, 0)


async def test_delete_of_what_is_not_there(store: Store):
    [id] = await put(store)
    before = await dump(store)
    assert await store.delete([job_id(new_batch(), 0), job_id(id, 9)]) == frozenset()
    assert await store.delete([]) == frozenset()
    assert await dump(store) == before
    assert await store.delete([id]) == {id}
    assert await store.delete([id]) == frozenset()


async def test_a_deleted_job_cannot_come_back(store: Store):
    made = await put(store, 3)
    await settle_all(store, await take(store, 1), DEAD)
    await store.delete(made[:2])
    assert await store.retry(made[:2]) == frozenset()
    assert ids(await claim(store)) == made[2:]
    assert await store.get(made[:2]) == [None, None]


async def test_the_failures_of_a_deleted_job_are_gone_too(store: Store):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DEAD, failure=failure(message="secret"), failures=1))
    await store.delete([id])
    assert await find_all(store, Filter(text="secret")) == []


# ── pause and resume ─────────────────────────────────────────────────────────


async def test_no_claim_of_a_paused_queue(store: Store):
    [id] = await put(store)
    await store.pause("default", by="ada")
    assert await claim(store) is None
    assert await state(store, id) is JobState.READY
    assert (await queue_stats(store)).paused is True
    await store.resume("default")
    assert (await queue_stats(store)).paused is False
    assert ids(await claim(store)) == [id]


async def test_other_queues_go_on(store: Store):
    await put(store, queue="a", priority=9)
    [b] = await put(store, queue="b")
    await store.pause("a")
    assert ids(await claim(store, 10, "a", "b")) == [b]


async def test_running_jobs_of_a_paused_queue_go_on(store: Store):
    made = await put(store, 2)
    lease = await take(store)
    await store.pause("default")
    assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
    assert await store.settle(lease.token, [(0, DONE), (1, RELEASE)]) == frozenset()
    assert await states(store, made) == [JobState.DONE, JobState.READY]
    assert await claim(store) is None


async def test_a_paused_queue_takes_jobs(store: Store):
    await store.pause("default")
    made = await put(store, 3)
    assert await counts(store) == {"ready": 3}
    await store.resume("default")
    assert ids(await claim(store)) == made


async def test_a_queue_may_be_paused_before_it_exists(store: Store):
    await store.pause("later")
    [stats] = (await store.stats()).queues
    assert (stats.queue, stats.paused, stats.ready) == ("later", True, 0)


async def test_pausing_and_resuming_twice(store: Store):
    await put(store)
    await store.pause("default", by="ada")
    await store.pause("default", by="bob")
    assert await claim(store) is None
    await store.resume("default")
    await store.resume("default")
    await store.resume("never-paused")
    assert await claim(store) is not None
