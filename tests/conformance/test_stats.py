"""stats: the figures are what one would count oneself, and totals only grow."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from conformance.kit import (
    CANCELLED,
    DEAD,
    JANITOR,
    RELEASE,
    TTL,
    counts,
    failure,
    find_all,
    new,
    put,
    put_jobs,
    queue_stats,
    run_one,
    take,
)
from headrace.model.outcome import DONE, Again
from headrace.model.records import QueueStats
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)


async def test_one_queue_in_figures(store: Store, clock: FakeClock):
    await put(store, 9)
    clock.advance(5)
    lease = await take(store, 7)
    ends = [DONE, DONE, DEAD, CANCELLED, RELEASE, Again(1, 0, due=S, failure=failure())]
    await store.settle(lease.token, list(enumerate(ends)))
    await put(store, 2, due=TTL)
    assert await queue_stats(store) == QueueStats(
        queue="default",
        ready=3,
        scheduled=3,
        running=1,
        dead=1,
        done_total=2,
        failed_total=1,
        enqueued_total=11,
        oldest_ready=5 * S,
        paused=False,
    )


async def test_queues_are_told_apart_and_in_order(store: Store):
    await put_jobs(store, new(queue="b"), new(queue="a"), new(queue="c", due=S), new(queue="b", priority=3, tenant="x"))
    await run_one(store, DEAD, "a")
    found = (await store.stats()).queues
    assert [(q.queue, q.ready, q.scheduled, q.dead) for q in found] == [("a", 0, 0, 1), ("b", 2, 0, 0), ("c", 0, 1, 0)]


async def test_the_age_of_the_longest_waiting_job(store: Store, clock: FakeClock):
    await put(store)
    clock.advance(10)
    await put(store, priority=5, tenant="other")
    assert (await queue_stats(store)).oldest_ready == 10 * S
    await run_one(store)
    clock.advance(1)
    assert (await queue_stats(store)).oldest_ready == 11 * S
    await run_one(store)
    assert (await queue_stats(store)).oldest_ready is None


async def test_scheduled_jobs_do_not_wait_but_promoted_ones_do_since_their_enqueue(store: Store, clock: FakeClock):
    await put(store, due=10 * S)
    assert (await queue_stats(store)).oldest_ready is None
    clock.advance(12)
    await store.promote()
    assert (await queue_stats(store)).oldest_ready == 12 * S


async def test_reaped_jobs_are_running_until_settled(store: Store, clock: FakeClock):
    await put(store, 2)
    await take(store)
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert await counts(store) == {"running": 2}
    await store.settle(orphan.token, [(0, RELEASE)])
    assert await counts(store) == {"running": 1, "ready": 1}


async def test_figures_equal_what_is_counted_by_hand(store: Store, clock: FakeClock):
    for round in range(12):
        await put(store, 5, queue="ab"[round % 2], tenant=f"t{round % 3}", due=S if round % 4 == 3 else None)
        lease = await take(store, 7, "a", "b")
        ends = [DONE, DEAD, RELEASE, Again(1, 0, due=3 * S), CANCELLED]
        await store.settle(lease.token, list(enumerate(ends))[: len(lease.jobs)])
        clock.advance(1)
        await store.promote(limit=3)
        by_hand = Counter((job.queue, str(job.state)) for job in await find_all(store))
        for queue in ("a", "b"):
            figures = await counts(store, queue)
            names = ("ready", "scheduled", "running", "dead")
            assert figures == {name: by_hand[queue, name] for name in names if by_hand[queue, name]}


async def test_totals_only_grow(store: Store):
    made = await put(store, 3)
    await run_one(store)
    await run_one(store, Again(1, 0, failure=failure()))
    before = await queue_stats(store)
    await store.retry(made)
    await store.cancel(made)
    await store.delete(made)
    after = await queue_stats(store)
    assert (after.enqueued_total, after.done_total, after.failed_total) == (3, 1, 1)
    assert (before.enqueued_total, before.done_total, before.failed_total) == (3, 1, 1)


async def test_more_lanes_than_a_look_sees(store: Store, clock: FakeClock):
    """The counts are exact. The age may cover only the lanes that were read, and then the store marks it."""
    await put_jobs(store, *[new(tenant=f"t{n}") for n in range(1000)])
    await put(store, tenant="another")
    await put_jobs(store, *[new(tenant=f"t{n}", queue="few") for n in range(1000)])
    clock.advance(5)
    few, many = sorted((await store.stats()).queues, key=lambda found: found.ready)
    assert (few.ready, many.ready) == (1000, 1001)
    assert (few.oldest_ready, few.oldest_at_least) == (5 * S, False)
    assert many.oldest_ready == 5 * S
    assert len(await store.lanes(["default", "few"], 5000)) == 2000


async def test_a_lane_whose_jobs_are_all_cancelled_hides_nothing(store: Store, clock: FakeClock):
    gone = await put(store, 3, tenant="gone")
    await put(store, tenant="waits")
    await store.cancel(gone)
    clock.advance(5)
    found = await queue_stats(store)
    assert (found.ready, found.oldest_ready, found.oldest_at_least) == (1, 5 * S, False)
