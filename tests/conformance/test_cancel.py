"""cancel: waiting jobs at once, running ones through their worker, finished ones not at all."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    CANCELLED,
    DEAD,
    JANITOR,
    RELEASE,
    TTL,
    claim,
    counts,
    dump,
    failure,
    look,
    put,
    queue_stats,
    run_one,
    settle_all,
    state,
    states,
    take,
)
from headrace.model.job import JobId, JobState, job_id, new_batch
from headrace.model.lease import Stop
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import CancelAnswer
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)


async def test_a_ready_job_is_cancelled_at_once(store: Store, clock: FakeClock):
    [id] = await put(store)
    clock.advance(1)
    assert await store.cancel([id], "no longer needed") == {id: CancelAnswer.CANCELLED}
    job = await look(store, id)
    assert (job.state, job.note, job.finished_at) == (JobState.CANCELLED, "no longer needed", clock.now())
    assert (job.attempt, job.cancelling) == (0, False)
    assert await claim(store) is None
    assert await counts(store) == {}


async def test_a_scheduled_job_is_cancelled_at_once(store: Store, clock: FakeClock):
    [id] = await put(store, due=S)
    assert await store.cancel([id]) == {id: CancelAnswer.CANCELLED}
    job = await look(store, id)
    assert (job.state, job.run_at, job.note) == (JobState.CANCELLED, None, None)
    clock.advance(2)
    assert (await store.promote()).moved == 0
    assert await counts(store) == {}


async def test_a_retrying_job_keeps_its_failures_when_cancelled(store: Store):
    [id] = await put(store)
    why = failure()
    await run_one(store, Again(1, 0, due=S, failure=why))
    await store.cancel([id])
    job = await look(store, id)
    assert (job.state, job.attempt, job.failures, job.history) == (JobState.CANCELLED, 1, 1, (why,))


async def test_a_running_job_is_asked_to_stop(store: Store):
    [id] = await put(store)
    lease = await take(store)
    assert await store.cancel([id], "stop it") == {id: CancelAnswer.ASKED}
    job = await look(store, id)
    assert (job.state, job.cancelling, job.finished_at) == (JobState.RUNNING, True, None)
    assert (await store.heartbeat([lease.token], TTL)).stops == (Stop(lease.token, 0),)
    assert await store.cancel([id], "stop it") == {id: CancelAnswer.ASKED}
    assert await counts(store) == {"running": 1}


async def test_a_running_job_that_ends_before_it_hears_is_done(store: Store):
    made = await put(store, 2)
    lease = await take(store)
    await store.cancel(made)
    await store.settle(lease.token, [(0, Finish(JobState.DONE, result=b"r")), (1, DEAD)])
    done, dead = await store.get(made)
    assert done is not None
    assert dead is not None
    assert (done.state, done.result, done.note, done.cancelling) == (JobState.DONE, b"r", None, False)
    assert (dead.state, dead.note, dead.cancelling) == (JobState.DEAD, "max_attempts", False)


async def test_a_cancelled_outcome_takes_the_cancels_reason(store: Store):
    made = await put(store, 2)
    lease = await take(store)
    await store.cancel(made, "asked by ada")
    await store.settle(lease.token, [(0, Finish(JobState.CANCELLED)), (1, CANCELLED)])
    assert [job and (job.state, job.note) for job in await store.get(made)] == [
        (JobState.CANCELLED, "asked by ada"),
        (JobState.CANCELLED, "enough"),
    ]


async def test_an_again_for_a_cancelled_job_becomes_cancelled(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    await store.cancel(made, "asked by ada")
    why = failure()
    clock.advance(1)
    agains = [RELEASE, Again(1, 0, due=S, failure=why, note="later"), Again(0, 2, suspect=True)]
    assert await store.settle(lease.token, list(enumerate(agains))) == frozenset()
    jobs = await store.get(made)
    assert [job and (job.state, job.note, job.finished_at) for job in jobs] == [
        (JobState.CANCELLED, "asked by ada", clock.now())
    ] * 3
    assert [job and (job.failures, job.crashes, job.history) for job in jobs] == [
        (0, 0, ()),
        (1, 0, (why,)),
        (0, 2, ()),
    ]
    assert [job and (job.run_at, job.cancelling) for job in jobs] == [(None, False)] * 3
    assert await claim(store) is None
    assert await counts(store) == {}
    assert (await queue_stats(store)).failed_total == 1


async def test_a_cancel_survives_the_worker(store: Store, clock: FakeClock):
    [id] = await put(store)
    await take(store)
    await store.cancel([id], "r")
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert (await look(store, id)).cancelling is True
    assert (await store.heartbeat([orphan.token], TTL)).stops == (Stop(orphan.token, 0),)
    await store.settle(orphan.token, [(0, Again(0, 0, suspect=True))])
    assert await state(store, id) is JobState.CANCELLED


async def test_a_cancel_does_not_haunt_the_next_life(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.cancel([id], "r")
    await settle_all(store, lease, RELEASE)
    await store.retry([id])
    job = await look(store, id)
    assert (job.state, job.cancelling, job.note) == (JobState.READY, False, None)
    lease = await take(store)
    assert (await store.heartbeat([lease.token], TTL)).stops == ()
    await settle_all(store, lease, RELEASE)
    assert await state(store, id) is JobState.READY


async def test_a_cancel_that_lost_does_not_haunt_the_next_life(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.cancel([id], "r")
    await settle_all(store, lease, DONE)
    await store.retry([id])
    lease = await take(store)
    assert (await store.heartbeat([lease.token], TTL)).stops == ()
    await settle_all(store, lease, RELEASE)
    assert await state(store, id) is JobState.READY


async def test_finished_jobs_are_untouched(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED)])
    clock.advance(1)
    before = await dump(store)
    assert await store.cancel(made, "too late") == dict.fromkeys(made, CancelAnswer.FINISHED)
    assert await dump(store) == before


async def test_unknown_jobs_are_said_to_be_unknown(store: Store):
    [id] = await put(store)
    beyond = job_id(new_batch(), 3)
    neighbour = JobId(job_id(id, 1))
    before = await dump(store)
    assert await store.cancel([beyond, neighbour]) == dict.fromkeys([beyond, neighbour], CancelAnswer.UNKNOWN)
    assert await store.cancel([]) == {}
    assert await dump(store) == before


async def test_many_at_once_each_by_its_state(store: Store):
    [done] = await put(store)
    await run_one(store)
    [running] = await put(store)
    await take(store)
    [ready] = await put(store)
    [scheduled] = await put(store, due=S)
    unknown = job_id(new_batch(), 0)
    answers = await store.cancel([unknown, scheduled, ready, running, done, ready])
    assert answers == {
        unknown: CancelAnswer.UNKNOWN,
        scheduled: CancelAnswer.CANCELLED,
        ready: CancelAnswer.CANCELLED,
        running: CancelAnswer.ASKED,
        done: CancelAnswer.FINISHED,
    }
    expected = [JobState.CANCELLED, JobState.CANCELLED, JobState.RUNNING, JobState.DONE]
    assert await states(store, [scheduled, ready, running, done]) == expected


async def test_cancelling_out_of_the_middle_of_a_batch(store: Store):
    made = await put(store, 10)
    cancelled = [made[0], made[4], made[5], made[9]]
    await store.cancel(cancelled)
    lease = await take(store)
    assert [job.id for job in lease.jobs] == [id for id in made if id not in cancelled]


async def test_cancelling_a_thousand(store: Store):
    made = await put(store, 1000)
    assert set((await store.cancel(made)).values()) == {CancelAnswer.CANCELLED}
    assert await claim(store) is None
    assert await counts(store) == {}
