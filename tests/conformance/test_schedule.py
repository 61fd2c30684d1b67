"""promote: what is due becomes ready, and the answer says when to come again."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    CANCELLED,
    JANITOR,
    TTL,
    claim,
    counts,
    failure,
    ids,
    look,
    new,
    put,
    put_jobs,
    run_one,
    state,
    states,
    take,
)
from headrace.model.job import JobState
from headrace.model.outcome import Again
from headrace.model.records import Promoted
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)
TICK = timedelta(microseconds=1)


async def test_nothing_is_scheduled(store: Store):
    await put(store)
    assert await store.promote() == Promoted(0, None)
    assert await counts(store) == {"ready": 1}


async def test_what_is_due_becomes_ready_at_its_moment(store: Store, clock: FakeClock):
    [id] = await put(store, due=10 * S)
    clock.advance(10 * S - TICK)
    assert await store.promote() == Promoted(0, TICK)
    assert await claim(store) is None
    clock.advance(TICK)
    assert await store.promote() == Promoted(1, None)
    job = await look(store, id)
    assert (job.state, job.run_at, job.attempt) == (JobState.READY, None, 0)
    assert ids(await claim(store)) == [id]


async def test_nothing_starts_early_and_nothing_moves_without_promote(store: Store, clock: FakeClock):
    [id] = await put(store, due=10 * S)
    clock.advance(60)
    assert await claim(store) is None
    assert await state(store, id) is JobState.SCHEDULED


async def test_the_answer_names_the_next_due_time(store: Store, clock: FakeClock):
    await put_jobs(store, new(due=30 * S), new(due=5 * S), new(due=5 * S), new(due=20 * S))
    assert await store.promote() == Promoted(0, 5 * S)
    clock.advance(6)
    assert await store.promote() == Promoted(2, 14 * S)
    clock.advance(14)
    assert await store.promote() == Promoted(1, 10 * S)
    clock.advance(1000)
    assert await store.promote() == Promoted(1, None)
    assert await counts(store) == {"ready": 4}


async def test_at_most_limit_jobs_move_the_earliest_first(store: Store, clock: FakeClock):
    made = await put_jobs(store, *[new(due=n * S) for n in (5, 1, 4, 2, 3)])
    clock.advance(10)
    assert await store.promote(limit=2) == Promoted(2, timedelta(0))
    assert await states(store, [made[1], made[3]]) == [JobState.READY] * 2
    assert await counts(store) == {"ready": 2, "scheduled": 3}
    assert await store.promote(limit=2) == Promoted(2, timedelta(0))
    assert await store.promote(limit=2) == Promoted(1, None)
    assert sorted(ids(await claim(store))) == made


async def test_a_bulk_of_delayed_jobs_moves_in_bounded_steps(store: Store, clock: FakeClock):
    made = await put(store, 2500, due=S)
    clock.advance(1)
    moved = [(await store.promote(limit=1000)).moved for _ in range(4)]
    assert sum(moved) == 2500
    assert moved[-1] == 0
    assert ids(await claim(store, 1000)) == made[:1000]


async def test_promoted_jobs_keep_lane_and_payload(store: Store, clock: FakeClock):
    [id] = await put_jobs(store, new("x.y", b"\x00", queue="q", priority=8, tenant="acme", due=S, options=b"o"))
    clock.advance(1)
    await store.promote()
    [job] = (await take(store, 1, "q")).jobs
    assert (job.id, job.task, job.payload, job.options) == (id, "x.y", b"\x00", b"o")
    assert (job.priority, job.tenant, job.attempt) == (8, "acme", 1)


async def test_retrying_is_scheduled_with_failures(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, Again(1, 0, due=4 * S, failure=failure()))
    job = await look(store, id)
    assert (job.state, job.failures) == (JobState.SCHEDULED, 1)
    clock.advance(4)
    assert await store.promote() == Promoted(1, None)
    [claimed] = (await take(store)).jobs
    assert (claimed.id, claimed.attempt, claimed.failures) == (id, 2, 1)


async def test_cancelled_deleted_and_retried_jobs_are_not_waited_for(store: Store, clock: FakeClock):
    made = await put_jobs(store, *[new(due=n * S) for n in (1, 2, 3, 4)])
    await store.cancel(made[:1])
    await store.delete(made[1:2])
    await store.retry(made[2:3])
    assert await store.promote() == Promoted(0, 4 * S)
    assert ids(await claim(store)) == made[2:3]
    clock.advance(10)
    assert await store.promote() == Promoted(1, None)
    assert await states(store, made) == [JobState.CANCELLED, None, JobState.RUNNING, JobState.READY]


async def test_one_of_a_delayed_run_may_be_cancelled(store: Store, clock: FakeClock):
    made = await put(store, 5, due=S)
    await store.cancel([made[2]])
    await store.delete([made[4]])
    clock.advance(1)
    assert (await store.promote()).moved == 3
    assert ids(await claim(store)) == [made[0], made[1], made[3]]


async def test_a_job_snoozed_again_and_again_moves_each_time(store: Store, clock: FakeClock):
    [id] = await put(store)
    for round in range(1, 6):
        await run_one(store, Again(0, 0, due=S))
        assert await store.promote() == Promoted(0, S)
        clock.advance(1)
        assert await store.promote() == Promoted(1, None)
        assert (await look(store, id)).attempt == round
    await run_one(store, CANCELLED)
    assert await store.promote() == Promoted(0, None)


async def test_a_paused_queue_is_promoted_all_the_same(store: Store, clock: FakeClock):
    await put(store, due=S)
    await store.pause("default")
    clock.advance(1)
    assert (await store.promote()).moved == 1
    assert await claim(store) is None
    assert await counts(store) == {"ready": 1}


async def test_an_earlier_appointment_of_the_same_job_is_forgotten(store: Store, clock: FakeClock):
    [moved] = await put(store, due=10 * S)
    await store.retry([moved])
    await run_one(store, Again(0, 0, due=100 * S))
    [between] = await put(store, due=50 * S)
    assert await store.promote() == Promoted(0, 50 * S)
    clock.advance(60)
    assert await store.promote() == Promoted(1, 40 * S)
    assert await states(store, [moved, between]) == [JobState.SCHEDULED, JobState.READY]


async def test_promote_tells_that_leases_have_run_out(store: Store, clock: FakeClock):
    await put(store)
    await take(store)
    assert not (await store.promote()).expired
    clock.advance(TTL.total_seconds())
    assert (await store.promote()).expired
    assert len(await store.reap(JANITOR, TTL)) == 1
    assert await store.reap(JANITOR, TTL) == []
    assert not (await store.promote()).expired
