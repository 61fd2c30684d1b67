"""Large jobs: no script moves or reads more than a few of them at once, and none is left out for it."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import RELEASE, claim, find_all, ids, new, put, put_jobs, settle_all, states, take, tenants
from headrace.model.job import JobState
from headrace.model.lease import LEASE_BYTES
from headrace.model.records import Filter, Retention
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis.test_bounds import scripts_run

LARGE = b"x" * 100_000
MOST = LEASE_BYTES
AT_ONCE = Retention(done=timedelta(0), dead=timedelta(0))


async def test_a_claim_takes_as_many_as_are_not_too_much_and_the_next_one_the_rest(store: RedisStore):
    made = await put(store, 100, payload=LARGE)
    taken = []
    while lease := await claim(store, 500):
        assert len(lease.jobs) <= MOST / len(LARGE)
        taken += ids(lease)
    assert taken == made


async def test_small_ones_first(store: RedisStore):
    """What was read so far does not say how large the next are: but the first large ones do."""
    made = await put(store, 70) + await put(store, 100, payload=LARGE) + await put(store, 500)
    taken = []
    while lease := await claim(store, 500):
        assert sum(len(job.payload) for job in lease.jobs) < 100 * len(LARGE)
        taken += ids(lease)
    assert taken == made


async def test_jobs_that_came_back(store: RedisStore):
    made = await put(store, 60, payload=LARGE)
    leases = []
    while lease := await claim(store, 500):
        leases.append(lease)
    for lease in leases:
        await settle_all(store, lease, RELEASE)
    taken = []
    while lease := await claim(store, 500):
        assert 1 <= len(lease.jobs) <= MOST / len(LARGE)
        taken += ids(lease)
    assert taken == made


async def test_turns_go_on_where_a_claim_ended(store: RedisStore):
    names = [f"t{n}" for n in range(4)]
    await put_jobs(store, *[new(tenant=name, payload=LARGE) for name in names for _ in range(20)])
    seen: list[str] = []
    while lease := await claim(store, 40):
        assert len(lease.jobs) < 40
        seen += tenants(lease)
    # A claim of 40 would have been a round of ten jobs each.
    assert [seen[:40].count(name) for name in names] == [10] * 4
    assert [seen.count(name) for name in names] == [20] * 4


async def test_looking_and_pruning(store: RedisStore, server: RedisServer):
    made = await put(store, 60, payload=LARGE)
    leases = []
    while lease := await claim(store, 500):
        leases.append(lease)
    running = Filter(states=frozenset({JobState.RUNNING}))
    assert [job.id for job in await find_all(store, running)] == made[::-1]
    before = scripts_run(server)
    assert await states(store, made) == [JobState.RUNNING] * 60
    assert scripts_run(server) - before >= 60 * len(LARGE) / MOST
    for lease in leases:
        await settle_all(store, lease)
    assert [job.id for job in await find_all(store, Filter(states=frozenset({JobState.DONE})))] == made[::-1]
    before = scripts_run(server)
    assert (await store.prune(AT_ONCE)).jobs == 60
    assert scripts_run(server) - before >= 2
    assert await find_all(store) == []


async def test_a_single_one_larger_than_all_that_a_claim_may_take(store: RedisStore):
    made = await put(store, 3, payload=b"x" * 3_000_000)
    assert ids(await take(store, 5))[0] == made[0]
    assert len(await find_all(store)) == 3
