"""Turns on PostgreSQL: shares over claims of one, several store objects and a pooler; nothing twice on any way round."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Lease, new_token
from headrace.model.outcome import DONE
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import TTL, WORKER, put, take

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
WEIGHTS = {"default": {"a": 4, "b": 2}}
SHARES = {"a": 4 / 8, "b": 2 / 8, "c": 1 / 8, "d": 1 / 8}


async def fill(store: PostgresStore, count: int) -> None:
    for tenant in SHARES:
        await put(store, count, lane=Lane(tenant=tenant))


async def ask(store: PostgresStore, limit: int) -> Lease | None:
    return await store.claim(Ask(WORKER, ("default",), limit, TTL, new_token(), weights=WEIGHTS))


async def serve(store: PostgresStore, got: Counter[str], jobs: int, limits: list[int]) -> None:
    """Claim so many jobs and settle them, by claims of these sizes in turn."""
    left = jobs
    while left > 0:
        lease = await ask(store, min(left, limits[left % len(limits)]))
        assert lease is not None
        left -= len(lease.jobs)
        got.update(job.tenant for job in lease.jobs)
        await store.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))])


def fair(got: Counter[str]) -> bool:
    return all(abs(got[tenant] / got.total() - share) <= 0.05 * share for tenant, share in SHARES.items())


@pytest.fixture
async def others(url: str) -> AsyncIterator[list[PostgresStore]]:
    """Three more store objects on the same database."""
    stores = [PostgresStore(url) for _ in range(3)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


async def test_shares_of_claims_of_one(pg: PostgresStore):
    await fill(pg, 1500)
    got: Counter[str] = Counter()
    await serve(pg, got, 2000, [1])
    assert fair(got), got


async def test_shares_of_claims_of_one_at_once(url: str):
    """All jobs of a tenant are one range, which one claim holds at a time: the others wait for it, none passes it over."""
    got: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(url) for _ in range(8)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        await fill(stores[0], 1500)
        async with asyncio.timeout(500), asyncio.TaskGroup() as group:
            for store in stores:
                group.create_task(serve(store, got, 200, [1]))
    assert got.total() == 1600
    assert fair(got), got


async def test_shares_over_ten_thousand_jobs_and_several_store_objects(pg: PostgresStore, others: list[PostgresStore]):
    await fill(pg, 6000)
    got: Counter[str] = Counter()
    sizes = [[1], [3], [50], [200, 7]]
    counts = [300, 1700, 4000, 4000]
    async with asyncio.timeout(500), asyncio.TaskGroup() as group:
        for store, count, limits in zip([pg, *others], counts, sizes, strict=True):
            group.create_task(serve(store, got, count, limits))
    assert got.total() == 10_000
    assert fair(got), got


@pytest.mark.parametrize("size", [9, 11, 21, 50])
@pytest.mark.parametrize("way", ["walk", "descents", "limited"])
async def test_a_round_over_several_claims_is_the_same_for_all(pg: PostgresStore, way: str, size: int):
    """Claims that do not divide into turns end a round in the middle. The next one must go on with turns as long as before."""
    for _ in range(60 if way == "descents" else 1):
        for tenant in SHARES:
            limits = (f"key-{tenant}",) if way == "limited" else ()
            await put(pg, 8 if way == "descents" else 300, lane=Lane(tenant=tenant, limits=limits))
    got: Counter[str] = Counter()
    await serve(pg, got, 400, [size])
    assert all(abs(got[tenant] - 400 * share) <= 4 for tenant, share in SHARES.items()), got


@pytest.mark.parametrize("limit", [1, 60, 500])
@pytest.mark.parametrize("depth", [1, 4, 40])
async def test_nothing_twice_whatever_the_number_of_tenants(pg: PostgresStore, limit: int, depth: int):
    """Shallow and deep tenants, one with nearly everything, turns that begin anywhere on the ring."""
    random.seed(limit * depth)
    wanted = 0
    for _ in range(depth):
        names = random.sample(range(150), 100 if limit > 1 else 10)
        jobs = [NewJob("t", b"", Lane(tenant=f"t{n:03}")) for n in names] + [NewJob("t", b"", Lane(tenant="loud"))] * 30
        await pg.enqueue(Batch(new_batch(), jobs))
        wanted += len(jobs)
    seen: Counter[object] = Counter()
    last: dict[str, tuple[object, int]] = {}
    while lease := await pg.claim(Ask(WORKER, ("default",), limit, TTL, new_token())):
        for job in lease.jobs:
            seen[job.id] += 1
            place = (job.batch, job.ord)
            assert job.tenant not in last or last[job.tenant] < place, "out of order in its lane"
            last[job.tenant] = place
        await pg.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))])
    assert set(seen.values()) == {1}
    assert len(seen) == wanted


async def test_a_round_is_never_longer_than_one_turn_each(pg: PostgresStore):
    """A thousand tenants, then one more: no tenant gets a second turn before the new one."""
    await pg.enqueue(
        Batch(new_batch(), [NewJob("t", b"", Lane(tenant=f"t{n:04}")) for n in range(1000) for _ in range(2)])
    )
    first = await take(pg, 400)
    assert len({job.tenant for job in first.jobs}) >= 200
    await put(pg, lane=Lane(tenant="t0000-new"))
    seen: Counter[str] = Counter()
    while not seen["t0000-new"]:
        seen.update(job.tenant for job in (await take(pg, 100)).jobs)
    assert max(seen.values()) <= 2


@pytest.mark.parametrize("others", [5, 120])
async def test_claims_are_full_though_others_have_little(pg: PostgresStore, others: int):
    for _ in range(3):
        jobs = [NewJob("t", b"", Lane(tenant=f"t{n:03}")) for n in range(others)]
        await pg.enqueue(Batch(new_batch(), [*jobs, *[NewJob("t", b"", Lane(tenant="loud"))] * 400]))
    left = 3 * (400 + others)
    while left > 0:
        lease = await take(pg, 200)
        assert len(lease.jobs) == min(200, left)
        left -= len(lease.jobs)


async def test_whom_another_claim_is_taking_from_is_owed_its_turn(pg: PostgresStore, sql: Any):
    await put(pg, 1000, lane=Lane(tenant="a"))
    await put(pg, 1000, lane=Lane(tenant="b"))
    async with sql.transaction():
        await sql.fetch("select from headrace.ready where tenant = 'a' for update")
        lease = await take(pg, 40)
        assert Counter(job.tenant for job in lease.jobs) == {"b": 20}, "its share is not for others"
    lease = await take(pg, 40)
    assert Counter(job.tenant for job in lease.jobs) == {"a": 20 + 10, "b": 10}


async def test_every_tenant_that_other_claims_are_taking_from_is_owed_all_its_turns(pg: PostgresStore, sql: Any):
    for tenant in SHARES:
        await put(pg, 1000, lane=Lane(tenant=tenant))
    got: Counter[str] = Counter()
    async with sql.transaction():
        await sql.fetch("select from headrace.ready where tenant in ('a', 'b') for update")
        for _ in range(2):
            lease = await ask(pg, 40)
            assert lease is not None
            assert Counter(job.tenant for job in lease.jobs) == {"c": 5, "d": 5}
            got.update(job.tenant for job in lease.jobs)
    for _ in range(4):
        lease = await ask(pg, 40)
        assert lease is not None
        assert len(lease.jobs) == 40
        got.update(job.tenant for job in lease.jobs)
    assert got == {"a": 92, "b": 44, "c": 22, "d": 22}


async def test_a_tenant_behind_the_first_is_owed_its_turn_by_a_small_claim(pg: PostgresStore, sql: Any):
    for tenant in SHARES:
        await put(pg, 1000, lane=Lane(tenant=tenant))
    got: Counter[str] = Counter()
    async with sql.transaction():
        await sql.fetch("select from headrace.ready where tenant = 'b' for update")
        lease = await ask(pg, 5)
        assert lease is not None
        got.update(job.tenant for job in lease.jobs)
        assert got == {"a": 4, "c": 1}
    for _ in range(7):
        lease = await ask(pg, 5)
        assert lease is not None
        got.update(job.tenant for job in lease.jobs)
    assert got == {"a": 20, "b": 10, "c": 5, "d": 5}


async def test_what_a_tenant_is_owed_is_forgotten_when_it_has_no_jobs(pg: PostgresStore, sql: Any):
    await put(pg, 100, lane=Lane(tenant="a"))
    await put(pg, 1000, lane=Lane(tenant="b"))
    async with sql.transaction():
        await sql.fetch("select from headrace.ready where tenant = 'a' for update")
        assert {job.tenant for job in (await take(pg, 40)).jobs} == {"b"}
    everything = await pg.claim(Ask(WORKER, ("default",), 100, TTL, new_token(), tenant="a"))
    assert everything is not None
    assert len(everything.jobs) == 100
    assert {job.tenant for job in (await take(pg, 40)).jobs} == {"b"}
    await put(pg, 1000, lane=Lane(tenant="a"))
    assert Counter(job.tenant for job in (await take(pg, 40)).jobs) == {"a": 20, "b": 20}


@pytest.mark.parametrize("limit", [1, 2, 40, 150])
@pytest.mark.parametrize("tenants", [("",), ("a", "b", "c")])
async def test_a_claim_locks_no_range_in_vain(pg: PostgresStore, sql: Any, tenants: tuple[str, ...], limit: int):
    """A claim at the same moment would skip it, and take later jobs of the lane first."""
    for _ in range(10 if len(tenants) == 1 else 1):
        for tenant in tenants:
            await put(pg, 100, lane=Lane(tenant=tenant))
    lease = await take(pg, limit)
    assert len(lease.jobs) == limit
    # What was locked bears the mark of that; what was taken from begins later than before.
    assert await sql.fetchval("select count(*) from headrace.ready where lo = 0 and xmax::text <> '0'") == 0


async def test_empty_queues_cost_a_claim_nothing(pg: PostgresStore, sql: Any):
    """A worker of two thousand queues looks at those that have something."""
    await put(pg, 2, lane=Lane("q7"))
    await put(pg, 2, lane=Lane("elsewhere"))
    names = [f"q{n}" for n in range(2000)]
    call = (
        "select r_queue from headrace.claim($1, 10, gen_random_uuid(), gen_random_uuid(), '15 s', null, null, null, null, null, null,"
        " null, null, null, null, null, null, null, null, null, null, null, null, null, 400, 1000)"
    )
    async with sql.transaction():
        assert await sql.fetchval(call, [f",{','.join(names)},"]) == ["q7"]
        assert await sql.fetchval("select pg_stat_get_xact_numscans('headrace.ready_lane'::regclass)") < 50


async def test_many_queues_asked_for_and_more_that_have_something(pg: PostgresStore):
    for n in range(200):
        await put(pg, lane=Lane(f"q{n:03}"))
    taken: list[str] = []
    while lease := await pg.claim(Ask(WORKER, tuple(f"q{n:03}" for n in range(50, 150)), 30, TTL, new_token())):
        taken += [job.queue for job in lease.jobs]
    assert sorted(taken) == [f"q{n:03}" for n in range(50, 150)]


async def test_what_several_walks_took_is_put_into_the_order_of_its_lane(pg: PostgresStore, sql: Any):
    for tenant in "aba":
        await put(pg, 4, lane=Lane(tenant=tenant))
    rows = await sql.fetch("select batch from headrace.ready order by seq")
    early, other, late = (row["batch"] for row in rows)
    ordered = await sql.fetchrow(
        "select * from headrace.in_order($1, $2, $3, $4, $5, null, null)",
        ["a", "b", "a", "a"],
        [late, other, early, early],
        [0, 0, 2, 0],
        [3, 3, 3, 1],
        [7, 8, 9, 10],
    )
    assert list(ordered.values()) == [
        [early, other, early, late], [0, 0, 2, 0], [1, 3, 3, 3], [10, 8, 9, 7], None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("others", [False, True])
async def test_a_tenant_that_is_alone_is_served_by_one_walk(pg: PostgresStore, sql: Any, others: bool):
    """More ranges than a survey looks at: the walk reads as many as the claim wants. Beside another tenant there are turns."""
    for _ in range(80):
        await put(pg, lane=Lane(tenant="b"))
    if others:
        await put(pg, lane=Lane(tenant="a"))
    row = await sql.fetchrow(
        "select unit, stretch from headrace.survey_turns('default', 0::int2, 70, null, $1, $1, 0)", "b\x01"
    )
    assert tuple(row) == ((1, None) if others else (70, 70))
    lease = await ask(pg, 70)
    assert lease is not None
    assert len(lease.jobs) == 70
    assert len((await take(pg)).jobs) == 10 + others
