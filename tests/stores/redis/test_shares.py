"""Fair shares: whatever the size of claims, how many tenants there are, and how many clients ask in turn."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from itertools import cycle
from math import ceil

import pytest

from conformance.kit import TTL, WORKER, put
from headrace.model.lease import Ask, Band, new_token
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer

JOBS = 10_000
WEIGHTS = {"default": {"a": 4, "b": 2}}
SHARES = {"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.125}


async def served(servers: list[RedisStore], sizes: list[int], *, at_once: bool) -> Counter[str]:
    """How many of the first 10,000 jobs each tenant got, or of fewer where each needs a claim."""
    chance, jobs = random.Random(1), JOBS if max(sizes) > 1 else JOBS // 5
    got: Counter[str] = Counter()

    async def one(store: RedisStore) -> None:
        size = min(chance.choice(sizes), jobs - got.total())
        ask = Ask(WORKER, ("default",), size, TTL, new_token(), weights=WEIGHTS)
        if size > 0 and (lease := await store.claim(ask)):
            got.update(job.tenant for job in lease.jobs)

    while got.total() < jobs:
        if at_once:
            await asyncio.gather(*(one(store) for store in servers))
        else:
            await one(chance.choice(servers))
    return got


@pytest.mark.parametrize("sizes", [[1], [7], [100], [500], [1, 7, 100, 500]], ids=str)
@pytest.mark.parametrize("at_once", [False, True])
async def test_shares_of_several_clients(real_store: RedisStore, server: RedisServer, sizes: list[int], at_once: bool):
    for tenant in SHARES:
        for _ in range(6):
            await put(real_store, 1000, tenant=tenant)
            # Lanes with limit keys share their tenant's turn.
            await put(real_store, 200, tenant=tenant, limits=(f"shop:{tenant}",))
    others = [RedisStore(server.url()) for _ in range(2)]
    got = await served([real_store, *others], sizes, at_once=at_once)
    for other in others:
        await other.close()
    for tenant, share in SHARES.items():
        assert abs(got[tenant] / got.total() - share) <= 0.05 * share, got


@pytest.mark.parametrize("tenants", [2, 3, 10, 60])
@pytest.mark.parametrize(
    "sizes", [(1,), (2,), (3,), (7,), (30,), (100,), (500,), (500, 1), (6, 2), (7, 1, 1), (100, 3, 30)], ids=str
)
@pytest.mark.parametrize("weights", [{}, {"t0": 3}, {"t0": 4, "t1": 2}], ids=str)
async def test_everybody_is_at_most_one_turn_ahead_or_behind(
    real_store: RedisStore, server: RedisServer, tenants: int, sizes: tuple[int, ...], weights: Mapping[str, int]
):
    """Claims of several sizes in a fixed order: the order does not change any tenant's share."""
    weight = {f"t{number}": weights.get(f"t{number}", 1) for number in range(tenants)}
    whole = sum(weight.values())
    turn = max(1, ceil(max(sizes) / (50 if tenants > 50 else whole)))
    claims = max(40, 4 * whole * turn * len(sizes) // sum(sizes))
    jobs = sum(sizes) * ceil(claims / len(sizes))
    for tenant, share in weight.items():
        await put(real_store, jobs * share // whole + 2 * turn * share, tenant=tenant)
    others = [RedisStore(server.url()) for _ in range(2)]
    got: Counter[str] = Counter()
    for store, size, _ in zip(cycle([real_store, *others]), cycle(sizes), range(claims), strict=False):
        lease = await store.claim(Ask(WORKER, ("default",), size, TTL, new_token(), weights={"default": weights}))
        assert lease is not None
        assert len(lease.jobs) == size
        got.update(job.tenant for job in lease.jobs)
        ahead = {name: got[name] - got.total() * share / whole for name, share in weight.items()}
        assert all(abs(ahead[name]) <= turn * share for name, share in weight.items()), (got.total(), ahead)
    for other in others:
        await other.close()


@pytest.mark.parametrize("size", [10, 100, 500])
async def test_shares_of_bands(real_store: RedisStore, size: int):
    for priority in (9, 5, 1):
        for _ in range(8):
            await put(real_store, 1000, priority=priority)
    got: Counter[int] = Counter()
    bands = (Band(0, 4, size // 5), Band(5, 5, 3 * size // 10))
    while got.total() < JOBS:
        lease = await real_store.claim(Ask(WORKER, ("default",), size, TTL, new_token(), bands))
        assert lease is not None
        got.update(job.priority for job in lease.jobs)
    assert got == {1: JOBS / 5, 5: 3 * JOBS / 10, 9: JOBS / 2}
