"""Weights: some tenants' turns are longer; a tenant's lanes share its turn; claims of one tenant only."""

from __future__ import annotations

from collections import Counter

import pytest

from conformance.kit import claim, ids, new, put, put_jobs, rule, settle_all, take, tenants
from headrace.store.contract import Store

WEIGHTS = {"default": {"a": 3, "b": 2}}


async def served(store: Store, jobs: int, limit: int) -> Counter[str]:
    got: Counter[str] = Counter()
    while got.total() < jobs:
        got.update(tenants(await take(store, min(limit, jobs - got.total()), weights=WEIGHTS)))
    return got


@pytest.mark.parametrize("limit", [1, 2, 7, 30, 100, 500])
async def test_shares_by_weight(store: Store, limit: int):
    for tenant in ("c", "a", "d", "b"):
        await put(store, 2000, tenant=tenant)
    got = await served(store, 2100, limit)
    # 3 : 2 : 1 : 1
    for tenant, share in {"a": 900, "b": 600, "c": 300, "d": 300}.items():
        assert abs(got[tenant] - share) <= max(0.05 * share, 4), got


@pytest.mark.parametrize("limit", [1, 10, 100])
async def test_idle_shares_go_to_whoever_has_work(store: Store, limit: int):
    await put(store, 30, tenant="a")
    await put(store, 300, tenant="c")
    assert await served(store, 330, limit) == {"a": 30, "c": 300}
    assert await claim(store, 1, weights=WEIGHTS) is None


async def test_weights_hold_in_their_own_queue(store: Store):
    for tenant in ("a", "c"):
        await put(store, 100, queue="other", tenant=tenant)
    got: Counter[str] = Counter()
    for _ in range(40):
        got.update(tenants(await take(store, 1, "other", weights=WEIGHTS)))
    assert got == {"a": 20, "c": 20}


async def test_weights_may_change_between_claims(store: Store):
    for tenant in ("a", "b"):
        await put(store, 1000, tenant=tenant)
    got: Counter[str] = Counter()
    for turn in range(200):
        got.update(tenants(await take(store, 1, weights={"default": {"a": 1 + turn % 3}})))
    assert got.total() == 200
    assert got["a"] > got["b"] > 0


@pytest.mark.parametrize("limit", [1, 6, 40])
async def test_a_tenant_with_many_lanes_has_one_turn(store: Store, limit: int):
    await put_jobs(store, *[new(tenant="many", limits=(f"shop:{n % 10}",)) for n in range(400)])
    await put(store, 400, tenant="one")
    got: Counter[str] = Counter()
    while got.total() < 240:
        got.update(tenants(await take(store, limit)))
    assert abs(got["many"] - got["one"]) <= max(limit, 12)


async def test_lanes_of_a_tenant_take_turns_in_its_turn(store: Store):
    for lane in range(4):
        await put(store, 50, tenant="x", payload=b"%d" % lane, limits=(f"shop:{lane}",))
    await put(store, 300, tenant="y", payload=b"y")
    got: Counter[bytes] = Counter()
    while got.total() < 160:
        got.update(job.payload for job in (await take(store, 4)).jobs)
    assert abs(got[b"y"] - 80) <= 8
    assert all(abs(got[b"%d" % lane] - 20) <= 6 for lane in range(4)), got


async def test_a_blocked_tenant_is_owed_nothing(store: Store):
    await rule(store, "shop", concurrency=1)
    await put(store, 50, tenant="a", limits=("shop:a",))
    await put(store, 50, tenant="c")
    held = await take(store, 1, weights=WEIGHTS, tenant="a")
    assert set(tenants(await take(store, 20, weights=WEIGHTS))) == {"c"}
    await settle_all(store, held)
    assert Counter(tenants(await take(store, 10, weights=WEIGHTS))) == {"a": 1, "c": 9}


# ── one tenant only ──────────────────────────────────────────────────────────


async def test_a_claim_of_one_tenant(store: Store):
    await put(store, 5, tenant="a", priority=-3)
    wanted = await put(store, 5, tenant="b")
    await put(store, 5, tenant="c", priority=3)
    assert ids(await take(store, 3, tenant="b")) == wanted[:3]
    assert ids(await take(store, 100, tenant="b")) == wanted[3:]
    assert await claim(store, 100, tenant="b") is None
    assert await claim(store, 100, tenant="nobody") is None
    assert len((await take(store)).jobs) == 10


async def test_a_claim_of_nobody_in_particular(store: Store):
    await put(store, 2, tenant="a")
    wanted = await put(store, 2)
    assert ids(await take(store, tenant="")) == wanted


async def test_a_claim_of_one_tenant_over_priorities_and_queues(store: Store):
    low = await put(store, 2, tenant="a", priority=-1, queue="q1")
    high = await put(store, 2, tenant="a", priority=1, queue="q2")
    await put(store, 5, tenant="b", priority=5, queue="q1")
    assert ids(await take(store, 100, "q1", "q2", tenant="a")) == [*high, *low]
