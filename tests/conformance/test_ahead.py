"""Ahead: what a waiting job waits behind, counted no further than asked."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from conformance.kit import (
    DEAD,
    RELEASE,
    SUSPECT,
    claim,
    dump,
    ids,
    new,
    put,
    put_jobs,
    run_one,
    settle_all,
    take,
)
from headrace.model.job import JobId
from headrace.model.lane import Ahead
from headrace.model.outcome import Again
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

HOUR = timedelta(hours=1)


async def ahead(store: Store, id: JobId, limit: int = 10_000) -> Ahead:
    found = await store.ahead(id, limit)
    assert found is not None
    assert found.limit == limit
    return found


async def counts(store: Store, made: list[JobId]) -> list[tuple[int, int]]:
    return [(found.lane, found.higher) for id in made for found in [await ahead(store, id)]]


async def test_who_does_not_wait_waits_behind_nothing(store: Store):
    [done, dead, cancelled, running] = await put(store, 4)
    await run_one(store)
    await run_one(store, DEAD)
    await store.cancel([cancelled])
    assert ids(await take(store)) == [running]
    for id in (done, dead, cancelled, running, JobId(uuid4())):
        assert await store.ahead(id) is None


async def test_the_line_of_a_lane(store: Store):
    first, second = await put(store, 3), await put(store, 2)
    assert await counts(store, first + second) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]


async def test_it_says_in_what_order_jobs_will_be_claimed(store: Store):
    made = [*await put(store, 4), *await put(store), *await put(store, 3)]
    lease = await take(store, 3)
    await store.settle(lease.token, [(0, RELEASE), (1, Again(1, 0, due=HOUR)), (2, RELEASE)])
    await store.cancel([made[5]])
    waiting = [made[0], *made[2:5], *made[6:]]
    assert [found for found, _ in await counts(store, waiting)] == list(range(6))
    assert [ids(await claim(store, 1))[0] for _ in waiting] == waiting


async def test_other_lanes_do_not_count(store: Store):
    await put(store, 2, tenant="big")
    await put(store, 2, queue="other")
    await put(store, 2, queue="other", priority=9)
    await put(store, 2, priority=-1)
    await put(store, 2, limits=("shop:1",))
    [id] = await put(store)
    assert await counts(store, [id]) == [(0, 0)]


async def test_higher_priorities_of_the_queue_count_whoever_has_them(store: Store):
    [low, same] = await put_jobs(store, new(priority=-1), new(priority=1))
    await put(store, 2, priority=5, tenant="x")
    await put(store, 3, priority=9, tenant="y")
    await put(store, 4, priority=9, queue="other")
    assert await counts(store, [low, same]) == [(0, 6), (0, 5)]
    await take(store, 2)
    assert await counts(store, [low, same]) == [(0, 4), (0, 3)]


async def test_jobs_that_a_claim_passed_over_count(store: Store):
    [low] = await put(store, priority=-1)
    await put(store, 2, priority=3, tenant="x")
    await put(store, 3, priority=3, tenant="x", limits=("shop:1",))
    await put(store, 1, priority=2, tenant="x")
    await store.pause("x", kind="tenant")
    assert ids(await claim(store, 1)) == [low]
    [id] = await put(store, priority=2)
    assert (await ahead(store, id)).higher == 5
    [id] = await put(store)
    assert (await ahead(store, id)).higher == 7


async def test_running_and_scheduled_jobs_are_not_in_the_line(store: Store):
    made = await put(store, 5)
    await put(store, 2, due=HOUR)
    await take(store, 3)
    assert await counts(store, made[3:]) == [(0, 0), (1, 0)]


async def test_counting_ends_at_the_limit(store: Store):
    for _ in range(3):
        await put(store, 3)
    await put(store, 7, priority=1)
    [id] = await put(store)
    for limit, lane, higher in ((1, 1, 1), (5, 5, 5), (8, 8, 7), (9, 9, 7), (100, 9, 7)):
        assert await ahead(store, id, limit) == Ahead(lane=lane, higher=higher, limit=limit)


async def test_a_suspect(store: Store):
    [first, second] = await put(store, 2)
    await settle_all(store, await take(store, 1), SUSPECT)
    assert [(await ahead(store, id)).suspect for id in (first, second)] == [True, False]
    assert (await ahead(store, second)).lane == 1


async def test_a_scheduled_job_has_no_place_yet(store: Store, clock: FakeClock):
    await put(store, 2)
    [later] = await put(store, due=HOUR)
    await put(store, 1, priority=1)
    assert await ahead(store, later) == Ahead(limit=10_000)
    clock.advance(HOUR)
    await store.promote()
    assert await counts(store, [later]) == [(2, 1)]


@pytest.mark.parametrize("by", ["ann", ""])
async def test_who_paused_its_queue_and_when(store: Store, clock: FakeClock, by: str):
    [ready, scheduled] = await put_jobs(store, new(), new(due=HOUR))
    [other] = await put(store, queue="other")
    since = clock.now()
    await store.pause("default", by=by)
    clock.advance(60)
    for id in (ready, scheduled):
        assert await ahead(store, id) == Ahead(limit=10_000, paused_by=by, paused_since=since)
    assert await ahead(store, other) == Ahead(limit=10_000)
    await store.resume("default")
    assert await ahead(store, ready) == Ahead(limit=10_000)


async def test_of_two_pauses_the_first_counts(store: Store, clock: FakeClock):
    [id] = await put(store)
    since = clock.now()
    await store.pause("default", by="ann")
    clock.advance(60)
    await store.pause("default", by="bob")
    assert await ahead(store, id) == Ahead(limit=10_000, paused_by="ann", paused_since=since)
    await store.resume("default")
    await store.pause("default", by="bob")
    assert await ahead(store, id) == Ahead(limit=10_000, paused_by="bob", paused_since=clock.now())


async def test_looking_changes_nothing(store: Store):
    made = await put(store, 5)
    await take(store, 1)
    before = await dump(store)
    for id in made:
        await store.ahead(id)
    assert await dump(store) == before
