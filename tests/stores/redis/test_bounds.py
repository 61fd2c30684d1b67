"""A script blocks all clients, so no script handles more than a bounded number of jobs, whatever a call asks for."""

from __future__ import annotations

import re
from datetime import timedelta
from math import ceil
from typing import Any

import pytest

from conformance.kit import DEAD, RELEASE, TTL, WORKER, batch, counts, ids, key, new, put, put_jobs, settle_all, take
from headrace.errors import ConfigError
from headrace.model.job import MAX_BATCH, JobState, NewJob
from headrace.model.lease import MAX_LEASE, Ask, Lease, new_token
from headrace.model.outcome import DONE, Finish
from headrace.model.records import LimitRule
from headrace.store.redis.arguments import MOST_OTHERS
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer

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


@pytest.mark.parametrize(
    "jobs",
    [
        [new(tenant=f"t{n}") for n in range(1001)],
        [new(tenant=f"t{n % 2}") for n in range(1001)],
        [new(queue=f"q{n}") for n in range(1001)],
        [new(due=timedelta(hours=n)) for n in range(1001)],
        [new(key=key(f"k{n}")) for n in range(1001)],
    ],
    ids=["lanes", "lanes in turn", "queues", "due times", "keys"],
)
async def test_a_call_that_would_hold_up_the_server_is_refused_whole(store: RedisStore, jobs: list[NewJob]):
    """One script stores a call. The client and the HTTP server never send a call with more than a thousand jobs."""
    with pytest.raises(ConfigError, match=r"1,001 runs of jobs.*at most 1,000"):
        await store.enqueue(batch(*jobs))
    assert (await store.stats()).queues == []
    await store.enqueue(batch(*jobs[:1000]))
    await store.enqueue(batch(*jobs[1000:]))
    assert sum(figures.enqueued_total for figures in (await store.stats()).queues) == 1001


async def test_a_call_of_the_most_jobs_in_the_most_lanes(store: RedisStore):
    jobs = [new(tenant=f"t{n * 1000 // MAX_BATCH}", payload=b"") for n in range(MAX_BATCH)]
    await store.enqueue(batch(*jobs))
    assert (await counts(store)) == {"ready": MAX_BATCH}
    assert len(await store.lanes(["default"])) == 1000


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
