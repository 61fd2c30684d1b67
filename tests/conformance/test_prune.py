"""prune: finished jobs past retention go, nothing else does."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    CANCELLED,
    DEAD,
    counts,
    dump,
    expire,
    failure,
    find_all,
    key,
    new,
    put,
    put_jobs,
    queue_stats,
    run_one,
    settle_all,
    states,
    take,
)
from headrace.model.job import Batch, JobId, JobState, new_batch
from headrace.model.outcome import DONE, Finish
from headrace.model.records import CancelAnswer, Filter, Pruned, Retention
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

DAY = timedelta(days=1)
KEEP = Retention(done=2 * DAY, dead=10 * DAY)
SLACK = timedelta(days=2)
"""A store may drop whole days at once."""


async def prune(store: Store, keep: Retention = KEEP, *, limit: int = 10_000) -> int:
    """Prune until there is nothing more to do, then drop the dead letters past retention; how many went."""
    gone = 0
    for _ in range(1000):
        answer = await store.prune(keep, limit)
        gone += answer.jobs
        if not answer.more:
            return gone + await expire(store, keep, limit)
    raise AssertionError("prune never ends")


async def test_an_empty_store(store: Store):
    assert await prune(store) == 0


async def test_nothing_goes_before_its_time(store: Store, clock: FakeClock):
    await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED)])
    clock.advance(KEEP.done - timedelta(seconds=1))
    before = await dump(store)
    assert await prune(store) == 0
    assert await dump(store) == before


async def test_done_and_cancelled_go_after_done_retention(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED)])
    clock.advance(KEEP.done + SLACK)
    assert await prune(store) == 2
    assert await states(store, made) == [None, JobState.DEAD, None]
    assert [job.id for job in await find_all(store)] == [made[1]]


async def test_dead_go_after_dead_retention(store: Store, clock: FakeClock):
    made = await put(store, 2)
    await run_one(store, Finish(JobState.DEAD, note="n", failure=failure(message="old sorrow"), failures=1))
    clock.advance(KEEP.dead + SLACK)
    assert await counts(store) == {"ready": 1, "dead": 1}
    assert await prune(store) == 1
    assert await states(store, made) == [None, JobState.READY]
    assert await counts(store) == {"ready": 1}
    assert await find_all(store, Filter(text="old sorrow")) == []


async def test_prune_drops_no_dead_letter(store: Store, clock: FakeClock):
    """So that a record can be written first; `expired_dead` says which ones are past retention."""
    made = await put(store, 4)
    await settle_all(store, await take(store, 2), DEAD)
    clock.advance(KEEP.dead + SLACK)
    await settle_all(store, await take(store, 2), DEAD)
    before = await dump(store)
    for _ in range(3):
        assert await store.prune(KEEP) == Pruned(0, more=False)
    assert await dump(store) == before
    assert set(await store.expired_dead(KEEP)) == set(made[:2])
    assert len(await store.expired_dead(KEEP, 1)) == 1
    assert await dump(store) == before
    await store.retry(made[:1])
    assert await store.expired_dead(KEEP) == [made[1]]
    assert await store.delete(made[:2], states={JobState.DEAD}) == {made[1]}
    assert await store.expired_dead(KEEP) == []
    assert await states(store, made) == [JobState.READY, None, JobState.DEAD, JobState.DEAD]


async def test_an_instant_belongs_to_what_begins_with_it(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, DEAD)
    clock.advance(KEEP.dead - timedelta(microseconds=1))
    assert await store.expired_dead(KEEP) == []
    clock.advance(timedelta(microseconds=1))
    assert await store.expired_dead(KEEP) == [id]


async def test_results_past_their_time_go_and_others_stay(store: Store, clock: FakeClock):
    """Whether their bytes are gone is asked of each store; here: what an onlooker sees is the same before and after."""
    lives = [None, *[timedelta(seconds=n) for n in range(10)]] * 2
    made = await put(store, len(lives)) + await put(store, 3) + await put(store, 2)
    for size in (len(lives), 3, 2):
        lease = await take(store, size)
        ends = [Finish(JobState.DONE, result=b"r" * 100, result_ttl=life) for life in lives[:size]]
        await store.settle(lease.token, list(enumerate(ends))[::2])
        await store.settle(lease.token, list(enumerate(ends))[1::2])
    for _ in range(4):
        clock.advance(3)
        before = await dump(store)
        assert await prune(store, Retention(done=30 * DAY)) == 0
        assert await dump(store) == before
    jobs = await store.get(made)
    assert [job and job.result_expired for job in jobs] == [
        life is not None for life in [*lives, *lives[:3], *lives[:2]]
    ]
    assert await prune(store) == 0


async def test_a_retried_job_has_a_new_result_with_its_own_time(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, Finish(JobState.DONE, result=b"first", result_ttl=timedelta(seconds=5)))
    await store.retry([id])
    await run_one(store, Finish(JobState.DONE, result=b"second", result_ttl=timedelta(seconds=60)))
    clock.advance(10)
    await prune(store)
    [job] = await store.get([id])
    assert job is not None
    assert job.result == b"second"


async def test_unfinished_jobs_stay_for_ever(store: Store, clock: FakeClock):
    made = await put_jobs(store, new(payload=b"running"), new(payload=b"ready"), new(due=timedelta(days=400)))
    await take(store, 1)
    clock.advance(timedelta(days=300))
    assert await prune(store) == 0
    assert await states(store, made) == [JobState.RUNNING, JobState.READY, JobState.SCHEDULED]
    [job] = (await take(store)).jobs
    assert job.payload == b"ready"


async def test_time_counts_from_the_end_not_from_the_start(store: Store, clock: FakeClock):
    [id] = await put(store)
    clock.advance(timedelta(days=30))
    await run_one(store)
    clock.advance(KEEP.done - timedelta(seconds=1))
    assert await prune(store) == 0
    assert await states(store, [id]) == [JobState.DONE]


async def test_one_unfinished_job_does_not_keep_its_batch(store: Store, clock: FakeClock):
    made = await put(store, 5)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, DONE), (3, DONE), (4, DONE)])
    clock.advance(KEEP.done + SLACK)
    assert await prune(store) == 4
    assert await states(store, made) == [None, None, JobState.RUNNING, None, None]
    assert await store.settle(lease.token, [(2, DONE)]) == frozenset()


async def test_a_retried_job_is_not_pruned_for_its_earlier_end(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store, DEAD)
    await store.retry([id])
    clock.advance(KEEP.dead + SLACK)
    assert await prune(store) == 0
    assert await states(store, [id]) == [JobState.READY]


async def test_a_bounded_amount_per_call(store: Store, clock: FakeClock):
    made = await put(store, 60)
    await settle_all(store, await take(store))
    clock.advance(KEEP.done + SLACK)
    told: list[tuple[int, int, str]] = []
    first = await store.prune(KEEP, 25, lambda done, total, what: told.append((done, total, what)))
    assert first.more == (first.jobs < 60)
    assert first.jobs + await prune(store, limit=25) == 60
    assert await states(store, made) == [None] * 60
    assert all(done <= total for done, total, _ in told)


async def test_totals_outlive_pruned_jobs(store: Store, clock: FakeClock):
    await put(store, 2)
    await settle_all(store, await take(store))
    clock.advance(KEEP.done + SLACK)
    await prune(store)
    stats = await queue_stats(store)
    assert (stats.enqueued_total, stats.done_total) == (2, 2)


async def test_a_key_outlives_its_pruned_job(store: Store, clock: FakeClock):
    long = timedelta(days=30)
    [id] = await put_jobs(store, new(key=key("k", ttl=long)))
    await run_one(store)
    clock.advance(KEEP.done + SLACK)
    assert await prune(store) == 1
    made = new(key=key("k", ttl=long))
    assert (await store.enqueue(Batch(new_batch(), [made]))).existing == {0: id}
    clock.advance(long)
    await prune(store)
    assert (await store.enqueue(Batch(new_batch(), [made]))).existing == {}


async def test_pruned_jobs_are_unknown(store: Store, clock: FakeClock):
    [id] = await put(store)
    await run_one(store)
    clock.advance(KEEP.done + SLACK)
    await prune(store)
    assert await store.cancel([id]) == {id: CancelAnswer.UNKNOWN}
    assert await store.retry([id]) == frozenset()
    assert await store.delete([id]) == frozenset()


# ── dead letters by queue ────────────────────────────────────────────────────

BY_QUEUE = Retention(done=2 * DAY, dead=10 * DAY, dead_by_queue={"short": 4 * DAY, "long": 40 * DAY})
QUEUES = ("short", "other", "long")


async def dead_in_each(store: Store) -> list[JobId]:
    """One dead job of each queue, from one batch, so that they sit side by side."""
    made = await put_jobs(store, *(new(queue=queue) for queue in QUEUES))
    lease = await take(store, 100, *QUEUES)
    await settle_all(store, lease, DEAD)
    return made


async def test_a_queue_keeps_its_dead_for_a_time_of_its_own(store: Store, clock: FakeClock):
    made = await dead_in_each(store)
    clock.advance(4 * DAY - timedelta(seconds=1))
    assert await prune(store, BY_QUEUE) == 0
    clock.advance(SLACK)
    assert await prune(store, BY_QUEUE) == 1
    assert await states(store, made) == [None, JobState.DEAD, JobState.DEAD]
    assert [await counts(store, queue) for queue in QUEUES] == [{}, {"dead": 1}, {"dead": 1}]
    clock.advance(6 * DAY)
    assert await prune(store, BY_QUEUE) == 1
    assert await states(store, made) == [None, None, JobState.DEAD]
    clock.advance(40 * DAY)
    assert await prune(store, BY_QUEUE) == 1
    assert await states(store, made) == [None, None, None]
    assert [await counts(store, queue) for queue in QUEUES] == [{}, {}, {}]


async def test_only_the_dead_go_by_the_queues_own_time(store: Store, clock: FakeClock):
    made = await put(store, 3, queue="long")
    lease = await take(store, 100, "long")
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, CANCELLED)])
    clock.advance(KEEP.done + SLACK)
    assert await prune(store, BY_QUEUE) == 2
    assert await states(store, made) == [None, JobState.DEAD, None]


async def test_a_queue_may_forget_its_dead_before_its_done(store: Store, clock: FakeClock):
    made = await put(store, 2, queue="short")
    lease = await take(store, 100, "short")
    await store.settle(lease.token, [(0, DONE), (1, DEAD)])
    clock.advance(SLACK + timedelta(hours=1))
    keep = Retention(done=10 * DAY, dead=10 * DAY, dead_by_queue={"short": timedelta(hours=1)})
    assert await prune(store, keep) == 1
    assert await states(store, made) == [JobState.DONE, None]


async def test_a_bounded_amount_with_times_of_their_own(store: Store, clock: FakeClock):
    made = await put(store, 30, queue="short") + await put(store, 30, queue="long")
    await settle_all(store, await take(store, 100, "short", "long"), DEAD)
    clock.advance(BY_QUEUE.dead_by_queue["short"] + SLACK)
    first = await store.expired_dead(BY_QUEUE, 12)
    assert len(first) == 12
    assert set(first) <= set(made[:30])
    assert await prune(store, BY_QUEUE, limit=12) == 30
    assert await states(store, made) == [None] * 30 + [JobState.DEAD] * 30
