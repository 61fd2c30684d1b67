"""A real cluster of three: queues spread over the nodes, a slot moved and a node killed during work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from redis.crc import key_slot

from conformance.kit import (
    JANITOR,
    RELEASE,
    TTL,
    WORKER,
    batch,
    claim,
    counts,
    find_all,
    ids,
    key,
    new,
    put,
    put_jobs,
    settle_all,
    states,
    take,
)
from conformance.test_workers import presence
from headrace.errors import IdempotencyConflict, StoreError, Unavailable
from headrace.model.job import JobId, JobState, job_id
from headrace.model.lease import ORDERS, Ask, Band, new_token
from headrace.model.outcome import DONE
from headrace.model.rollup import AttemptEnd, Rollup
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster, RedisServer
from stores.redis.kit import asked_until_answered, eventually

QUEUES = [f"q{n}" for n in range(12)]


@pytest.fixture
async def store(cluster: RedisCluster) -> AsyncIterator[RedisStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = RedisStore(cluster.url())
    await store.open()
    yield store
    await store.close()


def slot_of(queue: str) -> int:
    return key_slot(f"hr:{{{queue}}}:d".encode())


async def test_queues_spread_over_the_nodes_and_are_one_store(store: RedisStore, cluster: RedisCluster):
    made = await put_jobs(store, *[new(queue=queue) for queue in QUEUES for _ in range(3)])
    assert len({cluster.node_of(slot_of(queue)).port for queue in QUEUES}) == 3
    assert {queue.queue for queue in (await store.stats()).queues} == set(QUEUES)
    assert [job.id for job in reversed(await find_all(store, limit=7))] == made
    lease = await take(store, 100, *QUEUES)
    assert sorted(ids(lease)) == made
    assert await store.settle(lease.token, [(at, DONE) for at in range(36)]) == frozenset()
    assert set(await states(store, made)) == {JobState.DONE}
    assert (await store.heartbeat([lease.token], TTL)).lost == {lease.token}


async def test_priorities_are_strict_across_nodes(store: RedisStore):
    low = await put(store, 3, queue="q0", priority=1)
    high = await put(store, 2, queue="q1", priority=2)
    top = await put(store, 1, queue="q0", priority=3)
    assert ids(await claim(store, 100, "q1", "q0")) == [*top, *high, *low]


async def test_a_lease_over_several_nodes_is_known_by_its_token_alone(store: RedisStore, cluster: RedisCluster):
    made = await put_jobs(store, *[new(queue=queue) for queue in QUEUES])
    lease = await take(store, 100, *QUEUES, ttl=TTL * 0)
    other = RedisStore(cluster.url())
    await other.open()
    assert (await other.heartbeat([lease.token], TTL * 0)).lost == frozenset()
    assert await other.settle(lease.token, [(0, DONE)]) == frozenset()
    [orphan] = await other.reap(JANITOR, TTL)
    assert sorted(job.id for _, job in orphan.jobs) == sorted(set(made) - {lease.jobs[0].id})
    assert await other.settle(orphan.token, [(at, RELEASE) for at, _ in orphan.jobs]) == frozenset()
    await other.close()
    assert await store.settle(lease.token, [(1, DONE)]) == {1}


async def test_a_key_counts_within_its_queue(store: RedisStore):
    [first] = await put_jobs(store, new(queue="q0", key=key("k")))
    assert (await store.enqueue(batch(new(queue="q0", key=key("k"))))).existing == {0: first}
    assert (await store.enqueue(batch(new(queue="q1", key=key("k"))))).existing == {}
    with pytest.raises(IdempotencyConflict):
        await store.enqueue(batch(new(queue="q0", key=key("k", b"other"))))


async def test_waiting_on_several_nodes(store: RedisStore):
    wait = asyncio.ensure_future(store.wait(QUEUES, 30))
    await put(store, 1, queue="q7")
    assert await wait
    assert not await store.wait(QUEUES[:3], 0.05)


# ── while it works ───────────────────────────────────────────────────────────


class Life:
    """A producer and a worker that go on through whatever happens."""

    def __init__(self, store: RedisStore, queues: list[str]) -> None:
        self.store, self.queues = store, queues
        self.acknowledged: list[JobId] = []
        self.done: list[JobId] = []
        self._stop = asyncio.Event()
        self._more = asyncio.Event()
        self._producer = asyncio.ensure_future(self._produce())
        self._tasks = [self._producer, asyncio.ensure_future(self._work())]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._more.set())

    async def _produce(self) -> None:
        while not self._stop.is_set():
            for queue in self.queues:
                made = batch(new(queue=queue), new(queue=queue, tenant="x"))
                await asked_until_answered(self.store.enqueue, made)
                self.acknowledged += [job_id(made.id, 0), job_id(made.id, 1)]
            await asyncio.sleep(0.002)

    async def _work(self) -> None:
        # A call may be under way when the producer is told to stop: what it acknowledges then is work, too.
        while not self._producer.done() or len(self.done) < len(self.acknowledged):
            # The same claim until it is answered: one whose answer was lost holds its jobs, and gets them again.
            ask = Ask(WORKER, tuple(self.queues), 10, TTL, new_token())
            lease = await asked_until_answered(self.store.claim, ask)
            if lease is None:
                await asked_until_answered(self.store.wait, self.queues, 0.05)
                continue
            settled = [(at, DONE) for at in range(len(lease.jobs))]
            assert await asked_until_answered(self.store.settle, lease.token, settled) == frozenset()
            self.done += ids(lease)
            self._more.set()

    async def progress(self, jobs: int = 20) -> None:
        """Until so many more jobs are done."""
        wanted = len(self.done) + jobs
        while len(self.done) < wanted:
            self._more.clear()
            assert not any(task.done() for task in self._tasks)
            await self._more.wait()

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


async def test_a_slot_moves_key_by_key_during_work(store: RedisStore, cluster: RedisCluster):
    slot = slot_of("q0")
    life = Life(store, ["q0"])
    for _ in range(3):
        await life.progress()
        home = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not home)
        await asyncio.to_thread(cluster.move_slot, slot, target, pause=0.005)
        assert cluster.node_of(slot) is target
    await life.progress()
    await life.end()
    assert sorted(life.done) == sorted(life.acknowledged)
    assert await counts(store, "q0") == {}
    assert set(await states(store, life.acknowledged)) == {JobState.DONE}


async def test_a_node_is_killed_and_comes_back_during_work():
    # With `everysec` a kill may take the last moment with it.
    with RedisCluster.start(3, settings={"appendfsync": "always"}) as cluster:
        store = RedisStore(cluster.url())
        await store.open()
        homes = {queue: cluster.node_of(slot_of(queue)) for queue in QUEUES}
        hurt = homes["q0"]
        well = next(queue for queue in QUEUES if homes[queue] is not hurt)
        life = Life(store, ["q0"])
        await life.progress()
        await asyncio.to_thread(hurt.crash)
        # The others go on.
        await put(store, 3, queue=well)
        await settle_all(store, await take(store, 3, well))
        with pytest.raises(StoreError):
            await store.enqueue(batch(new(queue="q0")))
        await asyncio.to_thread(hurt.restart)
        await life.progress()
        await life.end()
        assert set(await states(store, life.acknowledged)) == {JobState.DONE}
        await store.close()


@pytest.mark.parametrize("kind", ["unknown-endpoint", "hostname"])
async def test_nodes_that_do_not_say_by_what_name_to_call_them(kind: str):
    with RedisCluster.start(3, settings={"cluster-preferred-endpoint-type": kind}) as cluster:
        store = RedisStore(cluster.url())
        await store.open()
        made = await put_jobs(store, *[new(queue=queue) for queue in QUEUES])
        assert sorted(ids(await take(store, 100, *QUEUES))) == made
        await store.close()


async def test_a_cluster_that_is_down_says_so():
    with RedisCluster.start(3) as cluster:
        store = RedisStore(cluster.url())
        await store.open()
        for node in cluster.nodes:
            node.crash()
        # An open connection may have sent the call. Later calls were certainly not sent.
        with pytest.raises(StoreError):
            await store.enqueue(batch(new()))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await store.enqueue(batch(new()))
        await store.close()


# ── Sentinel ─────────────────────────────────────────────────────────────────


async def test_a_failover_is_followed():
    with RedisServer.start() as primary:
        replica = RedisServer.start(password=primary.password)
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        await eventually(lambda: "master_link_status:up" in replica.command("INFO", "replication"))
        with replica, RedisServer.sentinel(primary) as sentinel:
            await eventually(lambda: "num-slaves\n1" in sentinel.command("SENTINEL", "MASTER", "mymaster"))
            secret = primary.password
            url = f"redis+sentinel://:{secret}@127.0.0.1:{sentinel.port}/mymaster?sentinel_password={secret}"
            careful, store = RedisStore(f"{url}&replicas=1"), RedisStore(url)
            await careful.open()
            await store.open()
            lost = await put(store, 1, queue="other")
            lease = await take(store, 1, "other")
            # A wait for the replica covers all earlier writes of the stream, too.
            made = await put(careful, 5)
            primary.crash()
            with pytest.raises(StoreError):
                await careful.enqueue(batch(new(queue="other")))
            assert await asked_until_answered(store.settle, lease.token, [(0, DONE)]) == frozenset()
            assert await states(store, [*lost, *made]) == [JobState.DONE, *[JobState.READY] * 5]
            await careful.close()
            await store.close()


async def test_bands_that_find_nothing_leave_the_hint_to_others(store: RedisStore):
    await put(store, 1, queue="q1")
    assert await store.wait(QUEUES, 30.0)
    ask = Ask(WORKER, tuple(QUEUES), 10, TTL, new_token(), bands=(Band(5, 9, 10),), only_bands=True)
    assert await store.claim(ask) is None
    assert await store.wait(QUEUES, 30.0)


async def test_rollups_are_added_read_and_folded_on_a_cluster(store: RedisStore):
    old = [
        Rollup(start=n, id=uuid4(), queue=f"q{n}", task="t", end=AttemptEnd.DONE, count=n, sent=0) for n in range(1, 9)
    ]
    await store.add_history(old)
    await store.add_history(old)
    assert (await store.read_history(0, 100)).rollups == old
    whole = Rollup(start=1, id=uuid4(), queue="q", task="t", end=AttemptEnd.DONE, count=36, sent=0)
    assert await store.fold_history([rollup.key for rollup in old], [whole])
    assert not await store.fold_history([rollup.key for rollup in old], [whole])
    page = await store.read_history(0, 100)
    assert (page.rollups, page.folds) == ([whole], 1)


async def test_an_order_reaches_a_worker_although_records_are_on_another_node(store: RedisStore):
    worker = presence()
    assert (await store.heartbeat([], TTL, worker)).order == b""
    await store.record(ORDERS, str(worker.id), b"order", None)
    assert (await store.heartbeat([], TTL, worker)).order == b"order"
