"""What holds jobs back on a cluster: known to every queue, also to those that come later; counted within each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from conformance.kit import TTL, WORKER, claim, ids, new, put, put_jobs, settle_all, take
from headrace import Headrace, Limit
from headrace.errors import ConfigError
from headrace.model.job import JobState, UniqueLock
from headrace.model.lease import Ask, Band, new_token
from headrace.model.outcome import DONE
from headrace.model.records import LimitRule
from headrace.store.redis.client.cluster import slot_of
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisCluster

QUEUES = ("a", "b", "c")
LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})


@pytest.fixture
async def spread(cluster: RedisCluster, clock: FakeClock) -> AsyncIterator[RedisStore]:
    """A store on an empty cluster whose queues lie on different nodes."""
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = RedisStore(cluster.url(), clock=clock)
    await store.open()
    yield store
    await store.close()


async def test_a_rule_reaches_every_queue_and_those_that_come_later(spread: RedisStore, cluster: RedisCluster):
    await put(spread, 3, queue="a", limits=("api",))
    version = await spread.limit("api", LimitRule(concurrency=1), None)
    await put(spread, 3, queue="b", limits=("api",))
    for queue in ("a", "b"):
        assert len((await take(spread, 10, queue)).jobs) == 1
        assert await claim(spread, 10, queue) is None
    await spread.limit("api", LimitRule(concurrency=2), version)
    for queue in ("a", "b"):
        assert len((await take(spread, 10, queue)).jobs) == 1
    assert await spread.limits() == {"api": LimitRule(concurrency=2, version=2)}
    # Another process that has never heard of the queue.
    other = RedisStore(cluster.url())
    await put(other, 3, queue="c", limits=("api",))
    assert len((await take(spread, 10, "c")).jobs) == 2
    await other.close()


async def test_thousands_of_rules_and_paused_tenants_reach_every_queue(spread: RedisStore, cluster: RedisCluster):
    await put(spread, 1, queue="a")
    await spread.limit("shop:0", LimitRule(concurrency=1), None)
    await spread.pause("t0", kind="tenant")
    # As many calls would have written, each of which would copy all to every queue.
    home = cluster.node_of(slot_of("hr:{#limits}:"))
    for name, field, own in (("#r", "shop:0", "shop:%d"), ("#t", "t0", "t%d")):
        copy = (
            "local raw = redis.call('HGET', KEYS[1], ARGV[1]) "
            "for n = 1, 9999 do redis.call('HSET', KEYS[1], string.format(ARGV[2], n), raw) end"
        )
        home.command("EVAL", copy, "1", "hr:{#limits}:" + name, field, own)
    await put(spread, 2, queue="b", limits=("shop:9999",))
    await put(spread, 1, queue="b", tenant="t9999")
    assert len((await take(spread, 10, "b")).jobs) == 1
    await spread.limit("other", LimitRule(concurrency=1), None)
    await spread.resume("t9999", kind="tenant")
    assert [job.tenant for job in (await take(spread, 10, "b")).jobs] == ["t9999"]
    assert len(await spread.limits()) == 10_001


async def test_units_that_are_given_back_open_their_own_queue(spread: RedisStore):
    await spread.limit("api", LimitRule(concurrency=1), None)
    for queue in QUEUES:
        await put(spread, 2, queue=queue, limits=("api",))
    lease = await take(spread, 10, *QUEUES)
    assert sorted(job.queue for job in lease.jobs) == list(QUEUES)
    assert await claim(spread, 10, *QUEUES) is None
    at = next(position for position, job in enumerate(lease.jobs) if job.queue == "b")
    assert await spread.settle(lease.token, [(at, DONE)]) == frozenset()
    again = await take(spread, 10, *QUEUES)
    assert [job.queue for job in again.jobs] == ["b"]


async def test_a_paused_tenant_is_held_back_in_every_queue(spread: RedisStore, clock: FakeClock):
    await put(spread, 1, queue="a", tenant="t")
    await spread.pause("t", kind="tenant", by="me", until=clock.now() + timedelta(seconds=5))
    await put(spread, 1, queue="b", tenant="t")
    await put(spread, 1, queue="b", tenant="u")
    assert [job.tenant for job in (await take(spread, 10, *QUEUES)).jobs] == ["u"]
    assert await claim(spread, 10, *QUEUES) is None
    assert await spread.wait(QUEUES, 0.01) is False
    clock.advance(5)
    assert await spread.wait(QUEUES, 5)
    assert len((await take(spread, 10, *QUEUES)).jobs) == 2


async def test_a_paused_queue_does_not_hide_the_others(spread: RedisStore):
    await put(spread, 1, queue="a", priority=5)
    await put(spread, 1, queue="b")
    await spread.pause("a")
    assert [job.queue for job in (await take(spread, 10, *QUEUES)).jobs] == ["b"]
    await spread.resume("a")
    assert [job.queue for job in (await take(spread, 10, *QUEUES)).jobs] == ["a"]


async def test_bands_weights_and_a_tenant_over_queues_on_different_nodes(spread: RedisStore):
    for queue in ("a", "b"):
        await put(spread, 10, queue=queue, priority=9)
        await put(spread, 10, queue=queue, priority=1, tenant="t")
        await put(spread, 10, queue=queue, priority=1, tenant="u")
    low = Band(0, 5, 4)
    lease = await spread.claim(Ask(WORKER, ("a", "b"), 10, TTL, new_token(), (low,)))
    assert lease is not None
    assert sorted(job.priority for job in lease.jobs) == [1] * 4 + [9] * 6
    lease = await spread.claim(Ask(WORKER, ("a", "b"), 10, TTL, new_token(), (low,), only_bands=True))
    assert lease is not None
    assert len(lease.jobs) == 4
    lease = await spread.claim(Ask(WORKER, ("a", "b"), 100, TTL, new_token(), tenant="u"))
    assert lease is not None
    assert {job.tenant for job in lease.jobs} == {"u"}
    assert {job.queue for job in lease.jobs} == {"a", "b"}
    await settle_all(spread, lease)


async def test_a_unique_lock_counts_within_its_queue(spread: RedisStore):
    lock = UniqueLock("one", LIVE)
    for queue in ("a", "b"):
        job = new(queue=queue)
        [id] = await put_jobs(spread, type(job)(job.task, job.payload, job.lane, unique=lock))
        assert ids(await claim(spread, 1, queue)) == [id]


def test_a_limit_that_two_queues_share_is_refused():
    """Each would count for itself, and together they would exceed it."""
    app = Headrace("redis+cluster://127.0.0.1:6379")
    shared = Limit("api", concurrency=5)

    @app.task(queue="a", limits=[shared])
    async def one() -> None: ...

    @app.task(queue="a", limits=[shared])
    async def two() -> None: ...

    app.connect()

    @app.task(queue="b", limits=[shared])
    async def three() -> None: ...

    with pytest.raises(ConfigError, match=r"limit 'api' is shared .* 'a' and 'b': on a Redis cluster"):
        app.connect()
