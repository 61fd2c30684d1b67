"""Tenants take turns: no burst, however large, delays another's job by more than one round."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.kit import claim, new, put, put_jobs, take
from headrace.store.contract import Store


async def served(store: Store, jobs: int, limit: int, *queues: str) -> Counter[str]:
    """Claim this many jobs, `limit` at a time. Returns how many each tenant got."""
    got: Counter[str] = Counter()
    while got.total() < jobs:
        got.update(job.tenant for job in (await take(store, min(limit, jobs - got.total()), *queues)).jobs)
    return got


async def skewed(store: Store) -> None:
    """Three tenants: nine jobs in ten belong to one of them, in large and small calls."""
    await put(store, 1500, tenant="loud")
    await put(store, 100, tenant="quiet")
    for _ in range(100):
        await put(store, 1, tenant="third")
    await put(store, 300, tenant="loud")


@pytest.mark.parametrize("limit", [1, 2, 7, 30, 100])
async def test_equal_shares_while_all_have_work(store: Store, limit: int):
    await skewed(store)
    got = await served(store, 210, limit)
    assert max(got.values()) - min(got[name] for name in ("loud", "quiet", "third")) <= max(3, limit // 3)


@pytest.mark.parametrize("limit", [1, 10, 100])
async def test_the_rest_goes_to_who_still_has_work(store: Store, limit: int):
    await skewed(store)
    assert await served(store, 2000, limit) == {"loud": 1800, "quiet": 100, "third": 100}
    assert await claim(store) is None


async def test_a_single_job_waits_at_most_one_round_for_claims_of_one(store: Store):
    for tenant in ("a", "b", "z"):
        await put(store, 500, tenant=tenant)
    await served(store, 50, 1)
    # Whatever its name and wherever the turn stands now.
    for newcomer in ("0-first", "m-middle", "zz-last"):
        await put(store, tenant=newcomer)
        assert (await served(store, 4, 1))[newcomer] == 1


async def test_a_single_job_is_in_the_first_claim_of_many(store: Store):
    await put(store, 1000, tenant="loud")
    await put(store, tenant="quiet")
    assert (await served(store, 10, 10))["quiet"] == 1


async def test_bursts_in_small_calls_do_not_help(store: Store):
    for _ in range(100):
        await put(store, tenant="loud")
    await put(store, 10, tenant="quiet")
    got = await served(store, 20, 1)
    assert abs(got["loud"] - got["quiet"]) <= 1


async def test_a_newcomer_gets_no_arrears(store: Store):
    await put(store, 500, tenant="old")
    await served(store, 100, 1)
    await put(store, 500, tenant="new")
    got = await served(store, 100, 1)
    assert abs(got["old"] - got["new"]) <= 2


async def test_a_hundred_tenants_in_one_round(store: Store):
    tenants = [f"tenant-{n:03}" for n in range(100)]
    await put_jobs(store, *[new(tenant=tenant) for tenant in tenants for _ in range(3)])
    assert await served(store, 100, 1) == dict.fromkeys(tenants, 1)
    assert await served(store, 200, 50) == dict.fromkeys(tenants, 2)


async def test_nobody_in_particular_is_a_tenant_like_others(store: Store):
    await put(store, 50, tenant="")
    await put(store, 50, tenant="acme")
    got = await served(store, 40, 1)
    assert abs(got[""] - got["acme"]) <= 1


async def test_lanes_of_one_tenant_take_turns_too(store: Store):
    await put(store, 100, tenant="acme", limits=("shop:1",), payload=b"1")
    await put(store, 100, tenant="acme", limits=("shop:2",), payload=b"2")
    got = Counter([(await take(store, 1)).jobs[0].payload for _ in range(40)])
    assert abs(got[b"1"] - got[b"2"]) <= 1


async def test_queues_of_one_priority_take_turns(store: Store):
    await put(store, 200, queue="a")
    await put(store, 200, queue="b")
    for limit in (1, 10):
        leases = [await take(store, limit, "a", "b") for _ in range(40 // limit)]
        got = Counter(job.queue for lease in leases for job in lease.jobs)
        assert min(got["a"], got["b"]) >= 10


async def test_turns_are_taken_inside_each_priority(store: Store):
    for priority in (1, 0):
        await put(store, 40, tenant="loud", priority=priority)
        await put(store, 10, tenant="quiet", priority=priority)
    got = await served(store, 20, 1)
    assert abs(got["loud"] - got["quiet"]) <= 1
    assert await served(store, 30, 1) == {"loud": 30}
    got = await served(store, 20, 1)
    assert abs(got["loud"] - got["quiet"]) <= 1
