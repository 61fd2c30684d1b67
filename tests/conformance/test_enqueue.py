"""enqueue: all or nothing, safe to repeat, ready or scheduled by the store's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from conformance.kit import (
    batch,
    claim,
    counts,
    dump,
    find_all,
    ids,
    look,
    new,
    put,
    put_jobs,
    queue_stats,
    states,
    take,
)
from headrace.model.job import MAX_BATCH, Batch, JobState, job_id, new_batch, split_id
from headrace.model.outcome import DONE
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

RUN = timedelta(seconds=30)
LONG_AGO = timedelta(days=400)


async def test_a_fresh_store_is_empty(store: Store):
    assert await claim(store) is None
    assert await find_all(store) == []
    assert (await store.stats()).queues == []
    assert await store.workers() == []


async def test_a_job_waits_as_it_was_given(store: Store, clock: FakeClock):
    given = new("billing.charge", b"\x01\x02", queue="billing", priority=5, tenant="acme", options=b"o")
    [id] = await put_jobs(store, given)
    job = await look(store, id)
    assert (job.task, job.payload, job.options) == ("billing.charge", b"\x01\x02", b"o")
    assert (job.queue, job.priority, job.tenant, job.limits) == ("billing", 5, "acme", ())
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.READY, 0, 0, 0)
    assert job.enqueued_at == clock.now()
    assert (job.run_at, job.note, job.worker, job.claimed_at, job.finished_at) == (None,) * 5
    assert (job.cancelling, job.result, job.result_expired, job.history) == (False, None, False, ())


async def test_limit_keys_are_kept(store: Store):
    [id] = await put_jobs(store, new(limits=("shop:acme", "stripe")))
    assert (await look(store, id)).limits == ("shop:acme", "stripe")
    assert ids(await claim(store)) == [id]


async def test_times_are_aware(store: Store):
    [id] = await put(store, due=RUN)
    job = await look(store, id)
    assert job.enqueued_at.tzinfo is not None
    assert job.run_at is not None
    assert job.run_at.tzinfo is not None


async def test_bulk_gives_each_job_the_id_of_its_place(store: Store):
    made = batch(*[new(payload=b"%d" % n) for n in range(2500)])
    await store.enqueue(made)
    asked = [job_id(made.id, ord) for ord in (0, 1, 999, 1000, 2499)]
    jobs = await store.get(asked)
    assert [job and job.payload for job in jobs] == [b"0", b"1", b"999", b"1000", b"2499"]
    assert [split_id(id) for id in asked[:2]] == [(made.id, 0), (made.id, 1)]
    assert await counts(store) == {"ready": 2500}


async def test_a_batch_may_mix_lanes_and_times(store: Store):
    mixed = [
        new(queue="a"),
        new(queue="b", priority=3),
        new(queue="a", tenant="x"),
        new(queue="a", due=RUN),
        new(queue="b", due=timedelta(0)),
        new(queue="a"),
    ]
    made = await put_jobs(store, *mixed)
    assert [job.queue for job in reversed(await find_all(store))] == [job.lane.queue for job in mixed]
    assert await states(store, made) == [*[JobState.READY] * 3, JobState.SCHEDULED, *[JobState.READY] * 2]
    assert await counts(store, "a") == {"ready": 3, "scheduled": 1}
    assert await counts(store, "b") == {"ready": 2}


async def test_an_empty_batch_is_no_job(store: Store):
    before = await dump(store)
    assert (await store.enqueue(batch())).existing == {}
    assert await dump(store) == before


async def test_delay_counts_from_the_stores_clock(store: Store, clock: FakeClock):
    [id] = await put(store, due=RUN)
    job = await look(store, id)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, clock.now() + RUN)
    assert await claim(store) is None


async def test_a_time_is_kept_whatever_its_zone(store: Store, clock: FakeClock):
    at = clock.now() + timedelta(hours=1, microseconds=7)
    [id] = await put(store, due=at.astimezone(timezone(timedelta(hours=9, minutes=30))))
    assert (await look(store, id)).run_at == at


async def test_what_is_due_already_is_ready(store: Store, clock: FakeClock):
    past = [timedelta(0), timedelta(seconds=-1), clock.now(), clock.now() - LONG_AGO, datetime(1970, 1, 1, tzinfo=UTC)]
    made = await put_jobs(store, *[new(due=due) for due in past])
    assert await states(store, made) == [JobState.READY] * 5
    assert ids(await claim(store)) == made


async def test_far_futures_are_scheduled(store: Store, clock: FakeClock):
    far = [timedelta(days=3650), datetime(9999, 12, 31, tzinfo=UTC)]
    made = await put_jobs(store, *[new(due=due) for due in far])
    assert [job.run_at for job in reversed(await find_all(store))] == [clock.now() + timedelta(days=3650), far[1]]
    assert await states(store, made) == [JobState.SCHEDULED] * 2


async def test_repeating_a_call_after_a_lost_answer_changes_nothing(store: Store, clock: FakeClock):
    made = batch(new(), new(due=RUN), new(queue="b"))
    first = await store.enqueue(made)
    before = await dump(store)
    assert await store.enqueue(made) == first
    assert await dump(store) == before
    assert (await queue_stats(store)).enqueued_total == 2


async def test_repeating_a_call_whose_jobs_have_moved_on_changes_nothing(store: Store, clock: FakeClock):
    made = batch(new(), new(), new(due=RUN), new())
    await store.enqueue(made)
    lease = await take(store, 2)
    await store.settle(lease.token, [(0, DONE)])
    await store.cancel([job_id(made.id, 3)])
    clock.advance(1)
    before = await dump(store)
    assert (await store.enqueue(made)).existing == {}
    assert await dump(store) == before
    assert await claim(store) is None


async def test_another_batch_with_the_same_jobs_is_another_batch(store: Store):
    jobs = [new(), new()]
    await put_jobs(store, *jobs)
    await put_jobs(store, *jobs)
    assert await counts(store) == {"ready": 4}


async def test_a_batch_of_the_largest_size_is_taken(store: Store):
    one = new(payload=b"")
    made = Batch(new_batch(), [one] * MAX_BATCH)
    await store.enqueue(made)
    last = await look(store, job_id(made.id, MAX_BATCH - 1))
    assert last.state is JobState.READY
    assert (await queue_stats(store)).ready == MAX_BATCH
