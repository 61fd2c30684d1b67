"""A script holds up everybody, so no call of one does more than a bounded number of jobs, whatever is asked for at once."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

import pytest

from conformance.kit import DEAD, RELEASE, TTL, WORKER, counts, ids, new, put, put_jobs, settle_all, take
from headrace.model.job import JobState
from headrace.model.lease import MAX_LEASE, Ask, Lease, new_token
from headrace.model.outcome import DONE, Finish
from headrace.model.records import LimitRule
from headrace.store.redis.arguments import MOST_OTHERS
from headrace.store.redis.store import RedisStore
from headrace.testing.redis_servers import RedisServer

LANES = 350
"""More a claim never looks into: each costs a look at the lane and one at its jobs."""


def scripts_run(server: RedisServer) -> int:
    [calls] = re.findall(r"cmdstat_evalsha:calls=(\d+)", server.command("INFO", "commandstats")) or ["0"]
    return int(calls)


async def whole_lease(store: RedisStore, **options: Any) -> Lease:
    await put(store, MAX_LEASE, **options)
    lease = await take(store, MAX_LEASE)
    assert len(lease.jobs) == MAX_LEASE
    return lease


@pytest.mark.parametrize(
    ("end", "most"), [(DONE, MAX_LEASE), (Finish(JobState.DONE, result=b"r"), MAX_LEASE), (DEAD, 150), (RELEASE, 150)]
)
async def test_a_settle_of_a_thousand(store: RedisStore, server: RedisServer, end: Any, most: int):
    """Plain ends are one write for all; others are some writes each, and are told in parts."""
    assert MOST_OTHERS == 150
    await put(store, 1)
    await settle_all(store, await take(store))  # the server knows the scripts from here on
    lease = await whole_lease(store, limits=("shop:a",))
    before = scripts_run(server)
    assert await store.settle(lease.token, [(at, end) for at in range(MAX_LEASE)]) == frozenset()
    assert scripts_run(server) - before == ceil(MAX_LEASE / most)
    assert (await counts(store)).get("running", 0) == 0


@pytest.mark.parametrize("keys", [0, 1, 3])
async def test_a_claim_of_a_thousand_lanes(store: RedisStore, server: RedisServer, keys: int):
    """What a claim leaves, the next one finds, and the more limits a lane has, the fewer of them are looked into at once."""
    for name in "abc":
        await store.limit(name, LimitRule(concurrency=1), None)
    jobs = [new(tenant=f"t{n}", limits=tuple(f"{name}:{n}" for name in "abc"[:keys])) for n in range(MAX_LEASE)]
    made = await put_jobs(store, *jobs)
    # A second job behind some, which its limits hold back.
    held_back = await put_jobs(store, *jobs[:10])
    taken = []
    before = scripts_run(server)
    while lease := await store.claim(Ask(WORKER, ("default",), MAX_LEASE, TTL, new_token())):
        assert len({job.tenant for job in lease.jobs}) <= 2 * LANES / (2 + keys) + 1
        taken += ids(lease)
    assert scripts_run(server) - before > MAX_LEASE / LANES
    assert sorted(taken) == sorted(made if keys else made + held_back)


async def test_a_free_job_behind_a_thousand_blocked_lanes(store: RedisStore):
    await store.limit("a", LimitRule(concurrency=0), None)
    await put_jobs(store, *[new(tenant=f"t{n}", limits=(f"a:{n}",)) for n in range(MAX_LEASE)])
    [free] = await put(store, 1)
    assert ids(await take(store, 1)) == [free]
