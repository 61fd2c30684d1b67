"""A cluster of three with a node that was killed: its queues are unavailable, the others go on, whichever node it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from conformance.kit import JANITOR, TTL, WORKER, batch, claim, ids, new, put, put_jobs, settle_all, states, take
from headrace import Headrace
from headrace.errors import OutcomeUnknown, StoreError, Unavailable
from headrace.model.job import JobState
from headrace.model.lease import Lease, Presence, Report
from headrace.model.outcome import DONE
from headrace.model.records import Filter, LimitRule, Retention
from headrace.store.redis.client.cluster import slot_of
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster, RedisServer
from stores.redis.kit import asked_until_answered, eventually

COMMON = ["hr:queues", "hr:workers", "hr:shards"]
"""What lies on one node for all queues: each of these on another. The rules are with the workers, records with the shards."""
KEEP = Retention(done=timedelta(0))


def of_key(cluster: RedisCluster, key: str) -> RedisServer:
    return cluster.node_of(slot_of(key))


def queue_on(cluster: RedisCluster, node: RedisServer) -> str:
    return next(name for n in range(200) if of_key(cluster, f"hr:{{{(name := f'q{n}')}}}:") is node)


def whole(cluster: RedisCluster) -> bool:
    said = [node.command("CLUSTER", "INFO") for node in cluster.nodes]
    return all("cluster_state:ok" in each and "cluster_slots_ok:16384" in each for each in said)


def presence() -> Presence:
    return Presence(
        id=WORKER, name="w", queues=("q",), slots=1, running=0, version="1", started_at=datetime.now(UTC), tasks=()
    )


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[RedisCluster]]:
    """Two of them: a node that comes back takes no writes for two seconds, and meanwhile a test can use the other cluster."""
    with ExitStack() as stack:
        settings = {"appendfsync": "always"}
        yield [stack.enter_context(RedisCluster.start(3, settings=settings)) for _ in range(2)]


@pytest.fixture
async def mortal(clusters: list[RedisCluster]) -> RedisCluster:
    """The first cluster whose nodes all agree again."""
    recovered: list[RedisCluster] = []

    def some() -> bool:
        recovered.extend(cluster for cluster in clusters if whole(cluster))
        return bool(recovered)

    await eventually(some)
    return recovered[0]


@dataclass
class Scene:
    """One node of a cluster is about to be killed."""

    cluster: RedisCluster
    store: RedisStore
    hurt: RedisServer
    good: str
    bad: str
    dead: bool = False

    async def kill(self) -> None:
        await asyncio.to_thread(self.hurt.crash)
        self.dead = True

    def said(self) -> list[str]:
        """What the nodes that live say of the cluster."""
        return [node.command("CLUSTER", "INFO") for node in self.cluster.nodes if node is not self.hurt]

    async def revive(self) -> None:
        await asyncio.to_thread(self.hurt.restart)
        self.dead = False
        await eventually(lambda: whole(self.cluster))


@pytest.fixture(params=COMMON)
async def scene(mortal: RedisCluster, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """The node of what is for all queues dies."""
    async for scene in staged(mortal, of_key(mortal, request.param)):
        yield scene


@pytest.fixture
async def any_scene(mortal: RedisCluster) -> AsyncIterator[Scene]:
    """The node dies that knows the list of queues."""
    async for scene in staged(mortal, of_key(mortal, "hr:queues")):
        yield scene


async def staged(cluster: RedisCluster, hurt: RedisServer) -> AsyncIterator[Scene]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = RedisStore(cluster.url())
    await store.open()
    other = next(node for node in cluster.nodes if node is not hurt)
    scene = Scene(cluster, store, hurt, queue_on(cluster, other), queue_on(cluster, hurt))
    yield scene
    await store.close()
    if scene.dead:
        await asyncio.to_thread(hurt.restart)


# ── every verb ───────────────────────────────────────────────────────────────


async def test_the_queues_of_the_other_nodes_go_on(scene: Scene):
    store, good, bad = scene.store, scene.good, scene.bad
    [done] = await put(store, 1, queue=good)
    await settle_all(store, await take(store, 1, good))
    made = await put(store, 10, queue=good)
    await put(store, 10, queue=bad)
    await put(store, 1, queue=good, due=timedelta(milliseconds=1))
    expired = await take(store, 1, good, ttl=timedelta(0))
    lease = await take(store, 1, good)
    await scene.kill()

    assert (await store.heartbeat([lease.token], TTL, presence())).lost == frozenset()
    assert await store.report(lease.token, [(0, Report(note="half"))]) == frozenset()
    assert (await store.promote()).moved == 1
    [orphan] = await store.reap(JANITOR, TTL)
    assert [job.id for _, job in orphan.jobs] == ids(expired)
    assert (await store.prune(KEEP)).jobs == 1
    await put(store, 2, queue=good)
    found = {each.queue: each.ready for each in (await store.stats()).queues}
    assert found == {good: 11}
    assert await store.wait([good, bad], 30)
    both = await take(store, 100, good, bad)
    assert {job.queue for job in both.jobs} == {good}
    assert len(both.jobs) == 11
    await settle_all(store, both)
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert await states(store, [made[1]]) == [JobState.DONE]
    assert [view.queue for view in await store.lanes([good, bad])] == []
    assert await store.abandon(JANITOR, "killed") == 1
    with pytest.raises(StoreError):
        await store.get([done])  # it was pruned, but only an answer of all nodes can show that
    with pytest.raises(StoreError):
        await store.enqueue(batch(new(queue=bad)))
    with pytest.raises(Unavailable):
        await claim(store, 1, bad)
    with pytest.raises(Unavailable):
        await store.wait([bad], 30)


async def test_it_goes_on_when_the_nodes_know_and_the_clock_is_read_again(any_scene: Scene):
    scene = any_scene
    await put(scene.store, 1, queue=scene.good)
    await scene.kill()
    await eventually(lambda: any("cluster_slots_fail:0" not in said for said in scene.said()))
    await scene.store.now()
    [id] = await put(scene.store, 1, queue=scene.good)
    assert await states(scene.store, [id]) == [JobState.READY]


async def test_who_starts_meanwhile_works_with_the_others(scene: Scene, caplog: pytest.LogCaptureFixture):
    [first] = await put(scene.store, 1, queue=scene.good)
    await scene.kill()
    fresh = ShardedRedisStore(scene.cluster.url())
    with caplog.at_level(logging.WARNING):
        await fresh.open()
    assert any(f"127.0.0.1:{scene.hurt.port} cannot be reached" in each for each in caplog.messages)
    assert [each.level for each in await fresh.check() if str(scene.hurt.port) in each.message] == ["error"]
    [second] = await put(fresh, 1, queue=scene.good)
    lease = await take(fresh, 10, scene.good, scene.bad)
    assert sorted(ids(lease)) == sorted([first, second])
    assert await fresh.heartbeat([lease.token], TTL, presence())
    await settle_all(fresh, lease)
    assert (await fresh.promote()).moved == 0
    assert await fresh.reap(JANITOR, TTL) == []
    assert await states(fresh, [second]) == [JobState.DONE]
    await fresh.close()


async def test_a_worker_of_one_queue_that_starts_meanwhile_tidies_up_there(scene: Scene):
    await put(scene.store, 1, queue=scene.good, due=timedelta(milliseconds=1))
    await scene.kill()
    worker = RedisStore(scene.cluster.url())
    await worker.open()
    assert await claim(worker, 1, scene.good) is None
    assert (await worker.promote()).moved == 1
    assert await worker.reap(JANITOR, TTL) == []
    assert len((await take(worker, 1, scene.good)).jobs) == 1
    await worker.close()


async def test_a_queue_in_shards_goes_on_with_those_of_the_other_nodes(scene: Scene):
    store = ShardedRedisStore(scene.cluster.url(), shards={"hot": 12})
    await store.open()
    everyone = [f"t{n}" for n in range(40)]
    await put_jobs(store, *[new(queue="hot", tenant=tenant) for tenant in everyone])
    shards = {tenant: await shard_of(store, tenant) for tenant in everyone}
    well = [t for t in everyone if of_key(scene.cluster, f"hr:{{{shards[t]}}}:") is not scene.hurt]
    assert 0 < len(well) < 40
    await scene.kill()
    lease = await take(store, 100, "hot")
    assert sorted(job.tenant for job in lease.jobs) == sorted(well)
    await settle_all(store, lease)
    await put(store, 1, queue="hot", tenant=well[0])
    with pytest.raises(StoreError):
        await put(store, 1, queue="hot", tenant=next(t for t in everyone if t not in well))
    # The same for a new store that declares nothing.
    other = ShardedRedisStore(scene.cluster.url())
    await other.open()
    assert [job.tenant for job in (await take(other, 100, "hot")).jobs] == [well[0]]
    await store.close()
    await other.close()


async def shard_of(store: ShardedRedisStore, tenant: str) -> str:
    (found,) = (await store.store.find(Filter(tenant=tenant), limit=1)).jobs
    return found.queue


# ── what it has is not missing ───────────────────────────────────────────────


async def both(scene: Scene, ttl: timedelta = TTL) -> tuple[Lease, list[int], list[int]]:
    """A lease of both nodes, and the positions that each has."""
    await put_jobs(scene.store, *[new(queue=queue) for queue in (scene.good, scene.bad) for _ in range(2)])
    lease = await take(scene.store, 10, scene.good, scene.bad, ttl=ttl)
    queues = [job.queue for job in lease.jobs]
    here, there = ([at for at, name in enumerate(queues) if name == queue] for queue in (scene.good, scene.bad))
    assert len(here) == len(there) == 2
    return lease, here, there


async def test_a_job_of_a_silent_node_is_not_said_to_be_gone(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    [lost] = await put(store, 1, queue=scene.bad)
    [well] = await put(store, 1, queue=scene.good)
    await scene.kill()
    for verb in (store.get, store.cancel, store.retry, store.delete):
        with pytest.raises(StoreError):
            await verb([well, lost])
    await scene.revive()
    assert await states(store, [lost]) == [JobState.READY]


async def test_a_lease_of_both_is_settled_as_far_as_nodes_answer(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    lease, here, there = await both(scene)
    await scene.kill()
    assert await store.settle(lease.token, [(at, DONE) for at in here]) == frozenset()
    with pytest.raises(StoreError):
        await store.settle(lease.token, [(at, DONE) for at in [*here, *there]])
    await scene.revive()
    assert await store.settle(lease.token, [(at, DONE) for at in [*here, *there]]) == frozenset()
    assert set(await states(store, ids(lease))) == {JobState.DONE}
    assert (await store.heartbeat([lease.token], TTL)).lost == {lease.token}


async def test_a_lease_is_given_up_when_its_node_is_silent_for_as_long_as_it_lasts(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    spanning, _, _ = await both(scene)
    await put(store, 1, queue=scene.good)
    healthy = await take(store, 1, scene.good)
    await scene.kill()
    tokens = [spanning.token, healthy.token]
    assert (await store.heartbeat(tokens, TTL)).lost == frozenset()
    assert (await store.heartbeat(tokens, timedelta(0))).lost == {spanning.token}
    assert await store.settle(spanning.token, [(0, DONE), (2, DONE)]) <= {0, 2}


async def test_that_holds_where_all_leases_are_there_but_not_when_no_node_answers(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    await put(store, 1, queue=scene.bad)
    lease = await take(store, 1, scene.bad)
    others = [node for node in scene.cluster.nodes if node is not scene.hurt]
    await scene.kill()
    with pytest.raises(StoreError):
        await store.heartbeat([lease.token], TTL)
    for node in others:
        await asyncio.to_thread(node.crash)
    with pytest.raises(StoreError):
        await store.heartbeat([lease.token], timedelta(0))
    for node in others:
        await asyncio.to_thread(node.restart)
    beat = partial(store.heartbeat, [lease.token], timedelta(0))
    assert (await asked_until_answered(beat)).lost == {lease.token}


async def test_a_lease_that_runs_out_on_one_node_is_taken_over_without_the_other(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    lease, here, _ = await both(scene)
    await store.heartbeat([lease.token], timedelta(0))
    await scene.kill()
    [orphan] = await store.reap(JANITOR, TTL)
    assert [at for at, _ in orphan.jobs] == here
    assert await store.settle(orphan.token, [(at, DONE) for at in here]) == frozenset()
    await scene.revive()
    [rest] = await store.reap(JANITOR, TTL)
    assert await store.settle(rest.token, [(at, DONE) for at, _ in rest.jobs]) == frozenset()
    assert set(await states(store, ids(lease))) == {JobState.DONE}


async def test_what_a_worker_could_renew_it_keeps(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    lease, here, there = await both(scene, ttl=timedelta(0))
    await scene.kill()
    assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
    await scene.revive()
    [orphan] = await store.reap(JANITOR, TTL)
    assert [at for at, _ in orphan.jobs] == there
    assert await store.settle(lease.token, [(at, DONE) for at in here]) == frozenset()
    assert await store.settle(lease.token, [(at, DONE) for at in there]) == set(there)
    assert await store.settle(orphan.token, [(at, DONE) for at in there]) == frozenset()
    assert set(await states(store, ids(lease))) == {JobState.DONE}


async def test_a_rule_that_does_not_reach_every_queue_says_so(any_scene: Scene):
    scene, store = any_scene, any_scene.store
    assert scene.hurt is not of_key(scene.cluster, "hr:{#limits}:")
    await put(store, 3, queue=scene.good, limits=("api",))
    await put(store, 1, queue=scene.bad)
    await scene.kill()
    with pytest.raises(OutcomeUnknown, match=scene.bad):
        await store.limit("api", LimitRule(concurrency=1), None)
    # Where it could, it holds.
    assert len((await take(store, 10, scene.good)).jobs) == 1


async def test_a_node_that_takes_connections_and_says_nothing(any_scene: Scene):
    scene = any_scene
    store = RedisStore(f"{scene.cluster.url()}?timeout=1")
    await store.open()
    await put(store, 2, queue=scene.good)
    await put(store, 2, queue=scene.bad)
    scene.hurt.freeze()
    try:
        for _ in range(2):
            lease = await take(store, 1, scene.good, scene.bad)
            assert [job.queue for job in lease.jobs] == [scene.good]
            await settle_all(store, lease)
        assert (await store.promote()).moved == 0
        assert not await store.wait([scene.good, scene.bad], 0.01)
    finally:
        scene.hurt.thaw()
    lease = await asked_until_claimed(store, scene.bad)
    assert [job.queue for job in lease.jobs] == [scene.bad]
    await store.close()


async def asked_until_claimed(store: RedisStore, queue: str) -> Lease:
    while True:
        if (lease := await asked_until_answered(claim, store, 1, queue)) is not None:
            return lease


async def test_a_worker_of_both_goes_on_and_comes_back(any_scene: Scene):
    scene = any_scene
    app = Headrace(scene.cluster.url())

    @app.task(name="here", queue=scene.good)
    async def here(n: int) -> int:
        return n

    @app.task(name="there", queue=scene.bad)
    async def there(n: int) -> int:
        return n

    async with app, app.worker(queues=[scene.good, scene.bad]):
        assert await (await here.aenqueue(1)).aresult(timeout=60) == 1
        assert await (await there.aenqueue(2)).aresult(timeout=60) == 2
        await scene.kill()
        for n in range(3):
            # A caller that waits for a result searches the job in every queue, too.
            handle = await asked_until_answered(here.aenqueue, n)
            assert await asked_until_answered(handle.aresult) == n
        await scene.revive()
        handle = await asked_until_answered(there.aenqueue, 7)
        assert await asked_until_answered(handle.aresult) == 7


async def test_a_worker_with_a_result_for_the_node_goes_on_when_its_lease_has_run_out(any_scene: Scene):
    scene = any_scene
    app = Headrace(scene.cluster.url())
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="here", queue=scene.good)
    async def here(n: int) -> int:
        return n

    @app.task(name="there", queue=scene.bad)
    async def there() -> None:
        started.set()
        await go_on.wait()

    beat = timedelta(seconds=0.2)
    async with app, app.worker(queues=[scene.good, scene.bad], lease=5 * beat, heartbeat=beat):
        # A queue's first job needs the node of the list.
        await here.aenqueue(1)
        await there.aenqueue()
        await started.wait()
        await scene.kill()
        go_on.set()
        handle = await asked_until_answered(here.aenqueue, 7)
        assert await asked_until_answered(handle.aresult) == 7
