"""A queue in shards: spread over the nodes of a cluster, and still one queue for its users."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from conformance.kit import (
    DEAD,
    JANITOR,
    RELEASE,
    TTL,
    batch,
    claim,
    expire,
    find_all,
    ids,
    key,
    look,
    new,
    put,
    put_jobs,
    queue_stats,
    rule,
    run_one,
    settle_all,
    states,
    take,
    tenants,
)
from headrace import Headrace
from headrace.errors import ConfigError
from headrace.model.job import JobId, JobState, UniqueLock
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Band, new_token, new_worker_id
from headrace.model.outcome import Again
from headrace.model.records import Filter, Retention
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.shards import Shards, parse_counts, whole
from headrace.testing.clock import FakeClock
from servers.redis import RedisCluster, RedisServer

PARTS = ["hot", "hot#1", "hot#2", "hot#3"]
S = timedelta(seconds=1)


@pytest.fixture
async def store(server: RedisServer, clock: FakeClock) -> AsyncIterator[ShardedRedisStore]:
    server.command("FLUSHALL")
    store = ShardedRedisStore(server.url(), clock=clock, shards={"hot": 4})
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def spread(cluster: RedisCluster) -> AsyncIterator[ShardedRedisStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = ShardedRedisStore(f"{cluster.url()}?shards=hot:4")
    await store.open()
    yield store
    await store.close()


async def one_per_tenant(store: ShardedRedisStore, count: int = 40) -> list[JobId]:
    return await put_jobs(store, *[new(queue="hot", tenant=f"t{n}", payload=b"%d" % n) for n in range(count)])


# ── on a cluster ─────────────────────────────────────────────────────────────


async def test_the_parts_lie_on_every_node_and_are_one_queue(spread: ShardedRedisStore, cluster: RedisCluster):
    made = await one_per_tenant(spread)
    nodes = {cluster.node_of(key_slot(f"hr:{{{part}}}:d".encode())).port for part in PARTS}
    assert len(nodes) > 1
    used = [part for part in PARTS if (await spread.find(Filter(queue=part), limit=1)).jobs]
    assert used == PARTS
    lease = await take(spread, 100, "hot")
    assert sorted(ids(lease)) == sorted(made)
    assert {job.queue for job in lease.jobs} == {"hot"}
    await settle_all(spread, lease)
    assert set(await states(spread, made)) == {JobState.DONE}
    assert (await queue_stats(spread, "hot")).done_total == 40


async def test_who_did_not_declare_it_learns_it(spread: ShardedRedisStore, cluster: RedisCluster):
    made = await one_per_tenant(spread)
    other = ShardedRedisStore(cluster.url())
    await other.open()
    assert sorted(ids(await take(other, 100, "hot"))) == sorted(made)
    await other.close()


# ── one queue for its users ──────────────────────────────────────────────────


async def test_figures_pages_and_single_jobs(store: ShardedRedisStore):
    made = await one_per_tenant(store)
    await put(store, 3, queue="plain")
    stats = {one.queue: one.ready for one in (await store.stats()).queues}
    assert stats == {"hot": 40, "plain": 3}
    assert [job.id for job in await find_all(store, Filter(queue="hot"), limit=7)] == sorted(made, reverse=True)
    assert {job.queue for job in await find_all(store, limit=10)} == {"hot", "plain"}
    assert (await look(store, made[7])).queue == "hot"
    assert {view.queue for view in await store.lanes(["hot"])} == {"hot"}
    assert sum(view.jobs for view in await store.lanes(["hot"])) == 40


async def test_a_tenant_s_jobs_keep_their_order(store: ShardedRedisStore):
    for call in range(5):
        await put_jobs(store, *[new(queue="hot", tenant=f"t{n}", payload=b"%d" % call) for n in range(12)])
    seen: defaultdict[str, list[bytes]] = defaultdict(list)
    while lease := await claim(store, 7, "hot"):
        for job in lease.jobs:
            seen[job.tenant].append(job.payload)
    assert set(map(tuple, seen.values())) == {(b"0", b"1", b"2", b"3", b"4")}
    assert len(seen) == 12


async def test_calls_without_tenants_spread_whole(store: ShardedRedisStore):
    for _ in range(40):
        await put(store, 5, queue="hot")
    sizes = [len(await find_all(store, Filter(queue=part), limit=500)) for part in PARTS[1:]]
    assert all(size and size % 5 == 0 for size in sizes)


async def test_a_burst_of_one_tenant_holds_up_nobody(store: ShardedRedisStore):
    await put(store, 1000, queue="hot", tenant="loud")
    await one_per_tenant(store, 20)
    got = Counter(tenants(await take(store, 100, "hot")))
    assert got.total() == 100
    assert all(got[f"t{n}"] == 1 for n in range(20))


async def test_leases_come_and_go(store: ShardedRedisStore, clock: FakeClock):
    made = await one_per_tenant(store)
    lost = await take(store, 100, "hot")
    clock.advance(TTL)
    orphans = await store.reap(JANITOR, TTL, 100)
    assert sorted(job.id for orphan in orphans for _, job in orphan.jobs) == sorted(made)
    assert {job.queue for orphan in orphans for _, job in orphan.jobs} == {"hot"}
    assert len(await store.settle(lost.token, [(at, RELEASE) for at in range(40)])) == 40
    for orphan in orphans:
        await store.settle(orphan.token, [(at, RELEASE) for at, _ in orphan.jobs])
    assert sorted(ids(await take(store, 100, "hot"))) == sorted(made)


async def test_delays_and_retries(store: ShardedRedisStore, clock: FakeClock):
    await put_jobs(store, *[new(queue="hot", tenant=f"t{n}", due=S) for n in range(20)])
    clock.advance(S)
    assert (await store.promote()).moved == 20
    await settle_all(store, await take(store, 100, "hot"), Again(1, 0, due=S))
    assert (await queue_stats(store, "hot")).scheduled == 20
    clock.advance(S)
    await store.promote()
    assert {job.failures for job in (await take(store, 100, "hot")).jobs} == {1}


async def test_pause_and_resume_the_whole(store: ShardedRedisStore):
    await one_per_tenant(store)
    await store.pause("hot", by="ada")
    assert await claim(store, 100, "hot") is None
    assert [(one.kind, one.name, one.by) for one in await store.pauses()] == [("queue", "hot", "ada")]
    assert (await queue_stats(store, "hot")).paused
    await store.resume("hot")
    assert await store.pauses() == []
    assert len((await take(store, 100, "hot")).jobs) == 40


async def test_keys_and_locks_meet_their_like(store: ShardedRedisStore):
    live = frozenset({JobState.READY, JobState.SCHEDULED, JobState.RUNNING})
    for n in range(10):
        [keyed] = await put(store, queue="hot", key=key(f"k{n}"))
        [locked] = await put(store, queue="hot", unique=UniqueLock(f"u{n}", live))
        again = batch(new(queue="hot", key=key(f"k{n}")), new(queue="hot", unique=UniqueLock(f"u{n}", live)))
        assert (await store.enqueue(again)).existing == {0: keyed, 1: locked}


async def test_limits_by_key_hold(store: ShardedRedisStore):
    await rule(store, "shop", concurrency=2)
    await put_jobs(store, *[new(queue="hot", limits=(f"shop:{n % 10}",)) for n in range(100)])
    running: list[JobId] = []
    while lease := await claim(store, 7, "hot"):
        running += ids(lease)
    assert len(running) == 20


async def test_dead_letters_are_kept_as_long_as_the_queue_says(store: ShardedRedisStore, clock: FakeClock):
    made = await one_per_tenant(store, 20)
    for _ in range(20):
        await run_one(store, DEAD, "hot")
    clock.advance(timedelta(days=3))
    kept = Retention(dead=timedelta(days=1), dead_by_queue={"hot": timedelta(days=5)})
    assert await expire(store, kept) == 0
    clock.advance(timedelta(days=3))
    assert await expire(store, kept) == 20
    assert await store.get(made) == [None] * 20


async def test_weights_and_bands_reach_every_part(store: ShardedRedisStore):
    await put_jobs(store, *[new(queue="hot", tenant=f"t{n}", priority=n % 2) for n in range(40)])
    lease = await take(store, 10, "hot", bands=(Band(0, 0, 10, ("hot",)),))
    assert {job.priority for job in lease.jobs} == {0}


async def test_a_queue_that_is_split_later_keeps_what_waits(server: RedisServer, clock: FakeClock):
    server.command("FLUSHALL")
    before = ShardedRedisStore(server.url(), clock=clock)
    await before.open()
    made = await one_per_tenant(before)
    grown = ShardedRedisStore(server.url(), clock=clock, shards={"hot": 4})
    await grown.open()
    made += await one_per_tenant(grown)
    assert sorted(ids(await take(grown, 100, "hot"))) == sorted(made)
    smaller = ShardedRedisStore(server.url(), clock=clock, shards={"hot": 2})
    await smaller.open()
    made = await one_per_tenant(smaller)
    assert sorted(ids(await take(smaller, 100, "hot"))) == sorted(made)
    for one in (before, grown, smaller):
        await one.close()


# ── which part ───────────────────────────────────────────────────────────────


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from([(), ("x:1",), ("x:2",)])),
        min_size=1,
        max_size=30,
    ),
    st.integers(2, 9),
)
@settings(max_examples=50, derandomize=True, database=None, deadline=None)
def test_a_lane_is_whole_in_one_part(jobs: list[tuple[str, tuple[str, ...]]], count: int):
    shards = Shards({"hot": count})
    homes: defaultdict[Lane, set[str]] = defaultdict(set)
    for _ in range(2):
        made = batch(*[new(queue="hot", tenant=tenant, limits=limits) for tenant, limits in jobs])
        for old, moved in zip(made.jobs, shards.spread(made).jobs, strict=True):
            assert moved.lane.queue in shards.of("hot")
            assert whole(moved.lane.queue) == "hot"
            if old.lane.tenant or old.lane.limits:
                homes[old.lane].add(moved.lane.queue)
    assert all(len(parts) == 1 for parts in homes.values())


def test_queues_that_are_whole_stay_as_they_are():
    shards = Shards({"hot": 3})
    made = batch(new(), new(queue="plain"))
    assert shards.spread(made) is made
    ask = Ask(new_worker_id(), ("plain", "hot"), 5, TTL, new_token())
    assert shards.ask(ask).queues == ("plain", "hot", "hot#1", "hot#2")


@pytest.mark.parametrize("text", ["hot", "hot:", "hot:x", "hot:0", "hot:1025", "HOT:2", "a:2,b", "hot:-1", ""])
def test_nonsense_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"shards|queue name"):
        parse_counts(text)


def test_several_in_one_url():
    assert parse_counts("hot:4, mail:2,one:1") == {"hot": 4, "mail": 2}


async def test_an_app_declares_it(server: RedisServer):
    server.command("FLUSHALL")
    app = Headrace(server.url())
    app.queue("hot", shards=3)

    @app.task(queue="hot")
    async def hello(name: str) -> str:
        return name

    async with app, app.worker():
        handles = [await hello.using(tenant=f"t{n}").aenqueue(f"{n}") for n in range(10)]
        assert [await handle.aresult(timeout=30) for handle in handles] == [f"{n}" for n in range(10)]
    parts = server.command("HGETALL", "hr:shards")
    assert parts.split() == ["hot", "3"]
