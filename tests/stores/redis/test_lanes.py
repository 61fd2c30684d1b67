"""Lanes on lists: a tenant has one share however many lanes it has, and every job keeps its place for life."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest

from conformance.kit import RELEASE, claim, ids, new, put, put_jobs, take
from headrace.model.job import JobId
from headrace.model.outcome import Again
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock


async def shares(store: RedisStore, jobs: int, limit: int) -> Counter[str]:
    got: Counter[str] = Counter()
    while got.total() < jobs:
        got.update(job.tenant for job in (await take(store, min(limit, jobs - got.total()))).jobs)
    return got


@pytest.mark.parametrize("limit", [1, 4, 30])
async def test_a_tenant_with_many_lanes_gets_one_share(store: RedisStore, limit: int):
    await put(store, 200, tenant="plain")
    for shop in range(20):
        await put(store, 20, tenant="many", limits=(f"shop:{shop}",))
    await put(store, 100, tenant="many")
    got = await shares(store, 120, limit)
    assert abs(got["plain"] - got["many"]) <= max(2, limit)
    rest = await shares(store, 580, limit)
    assert got + rest == {"plain": 200, "many": 500}
    assert await claim(store) is None


async def test_lanes_with_limits_that_come_later_join_the_tenants_turn(store: RedisStore):
    await put(store, 60, tenant="a")
    await put(store, 60, tenant="b")
    await take(store, 1)
    for shop in range(5):
        await put(store, 10, tenant="b", limits=(f"shop:{shop}",))
    got = await shares(store, 60, 1)
    assert abs(got["a"] - got["b"]) <= 2


@pytest.mark.parametrize("seed", range(5))
async def test_order_for_life(store: RedisStore, clock: FakeClock, seed: int):
    """However often jobs come back: a lane is always claimed in the order of its enqueue calls."""
    chance = random.Random(seed)
    ready: list[JobId] = []
    scheduled: set[JobId] = set()
    for _ in range(40):
        count = chance.randint(1, 6)
        made = await put_jobs(store, *[new() for _ in range(count)])
        ready += made
        if chance.random() < 0.3:
            scheduled |= set(await put(store, 2, due=timedelta(seconds=1)))
        if chance.random() < 0.5:
            clock.advance(1)
            await store.promote()
            ready += scheduled
            scheduled = set()
        ready.sort()
        lease = await claim(store, chance.randint(1, 12))
        taken = ids(lease)
        assert taken == ready[: len(taken)]
        ready = ready[len(taken) :]
        assert lease is not None
        back = [at for at in range(len(taken)) if chance.random() < 0.6]
        later = [at for at in back if chance.random() < 0.3]
        again = Again(0, 0, due=timedelta(seconds=1))
        await store.settle(lease.token, [(at, again if at in later else RELEASE) for at in back])
        ready += [taken[at] for at in back if at not in later]
        scheduled |= {taken[at] for at in later}


async def test_a_list_that_begins_anew_goes_on_counting(store: RedisStore):
    """A list that begins anew counts on: what comes back from before is still before."""
    first = await put(store, 3)
    lease = await take(store)
    second = await put(store, 3)
    await store.settle(lease.token, [(at, RELEASE) for at in range(3)])
    assert ids(await claim(store)) == [*first, *second]


async def test_long_stretches_of_cancelled_jobs_are_passed_over(store: RedisStore):
    made = await put(store, 5000)
    [last] = await put(store)
    await store.cancel(made)
    found: list[JobId] = []
    for _ in range(10):
        found += ids(await claim(store, 1))
    assert found == [last]


async def test_a_gap_in_the_list_does_not_let_later_jobs_pass_one_that_came_back(store: RedisStore, clock: FakeClock):
    before = await put(store, 4)
    [late] = await put(store, due=timedelta(seconds=1))
    after = await put(store, 4)
    await store.cancel(before[1:3])
    clock.advance(1)
    await store.promote()
    assert ids(await claim(store, 3)) == [before[0], before[3], late]
    assert ids(await claim(store)) == after
