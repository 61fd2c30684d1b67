"""Gates on a cluster: a client that dies between a settlement and what it has to tell, words told twice, ends at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from conformance.kit import LONG, claim, ids, new, put, state, take
from conformance.test_gates import promote_all
from headrace.errors import GroupOver
from headrace.model.gate import Counts, Edge, GateId, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, JobState, job_id, new_batch
from headrace.model.outcome import DONE, Again
from headrace.store.redis.client import scripts
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster


class Killed(Exception):
    """Stands for the end of the process."""


async def dies(*_: object) -> int:
    raise Killed


@pytest.fixture
async def store(cluster: RedisCluster) -> AsyncIterator[RedisStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = RedisStore(cluster.url())
    await store.open()
    yield store
    await store.close()


def gate_in(queue: str, *, sealed: bool = True, signalled: bool = False) -> NewGate:
    return NewGate(id=new_gate_id(), queue=queue, sealed=sealed, signalled=signalled)


async def counts(store: RedisStore, gate: GateId) -> Counts:
    [found] = await store.gates([gate])
    assert found is not None
    return found.counts


async def group(store: RedisStore) -> tuple[NewGate, Batch]:
    """A gate in one queue, two members in two others, and a job that waits in a fourth."""
    id, gate = new_batch(), gate_in("q3")
    jobs = [new(queue="q1"), new(queue="q2"), new(queue="q4", wait=Wait(gate.id))]
    made = Batch(id, jobs, (gate,), (Edge(job_id(id, 0), job_id(id, 1), gate.id),))
    await store.enqueue(made)
    return gate, made


async def test_a_client_that_dies_before_it_tells_loses_nothing(store: RedisStore, cluster: RedisCluster):
    gate, made = await group(store)
    mortal = RedisStore(cluster.url())
    await mortal.open()
    for queue in ("q1", "q2"):
        lease = await take(mortal, 1, queue)
        mortal.telling.try_to_tell = dies  # type: ignore[method-assign]
        with pytest.raises(Killed):
            await mortal.settle(lease.token, [(0, DONE)])
    assert await counts(store, gate.id) == Counts(2)
    await mortal.close()
    await promote_all(store)
    assert await counts(store, gate.id) == Counts(2, done=2)
    assert ids(await claim(store, 10, "q4")) == [job_id(made.id, 2)]


async def test_words_that_are_told_twice_count_once(store: RedisStore):
    gate, made = await group(store)
    lease = await take(store, 1, "q1")
    store.telling.try_to_tell = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await store.settle(lease.token, [(0, DONE)])
    [[prefix, *words]] = await store.client.run(scripts.OWED, "q1")
    source = store.client.keys.queue("q1")
    for _ in range(3):
        await store.client.run(scripts.TAKE, "q3", "", source, *words)
    assert prefix.decode() == store.client.keys.queue("q3")
    assert await counts(store, gate.id) == Counts(2, done=1)
    del store.telling.try_to_tell
    await promote_all(store)
    assert await counts(store, gate.id) == Counts(2, done=1)
    assert await state(store, job_id(made.id, 2)) is JobState.BLOCKED


async def test_a_call_that_is_cut_off_leaves_its_gate_open_and_its_repetition_completes_it(store: RedisStore):
    id, gate = new_batch(), gate_in("q3")
    jobs = [new(queue="q1"), new(queue="q2"), new(queue="q4", wait=Wait(gate.id))]
    made = Batch(id, jobs, (gate,), (Edge(job_id(id, 0), job_id(id, 1), gate.id),))
    store.telling.tell = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await store.enqueue(made)
    del store.telling.tell
    await promote_all(store)
    [found] = await store.gates([gate.id])
    assert found is not None
    assert (found.sealed, found.counts) == (False, Counts(2))
    await store.enqueue(made)
    await store.enqueue(made)
    for queue in ("q1", "q2"):
        await store.settle((await take(store, 1, queue)).token, [(0, DONE)])
    assert await counts(store, gate.id) == Counts(2, done=2)
    assert ids(await claim(store, 10, "q4")) == [job_id(id, 2)]
    await store.enqueue(made)
    assert await counts(store, gate.id) == Counts(2, done=2)
    more = new_batch()
    with pytest.raises(GroupOver):
        await store.enqueue(Batch(more, [new(queue="q1")], (), (Edge(job_id(more, 0), job_id(more, 0), gate.id),)))
    assert await state(store, job_id(more, 0)) is None


async def test_the_last_two_members_end_at_the_same_time_in_two_queues(store: RedisStore, cluster: RedisCluster):
    other = RedisStore(cluster.url())
    await other.open()
    for _ in range(200):
        gate, made = await group(store)
        one, two = await take(store, 1, "q1"), await take(other, 1, "q2")
        await asyncio.gather(store.settle(one.token, [(0, DONE)]), other.settle(two.token, [(0, DONE)]))
        await promote_all(store)
        lease = await take(store, 10, "q4")
        assert ids(lease) == [job_id(made.id, 2)]
        await store.settle(lease.token, [(0, DONE)])
        assert await counts(store, gate.id) == Counts(2, done=2)
    await other.close()


async def test_a_suspension_and_its_signal_in_two_queues_at_the_same_time(store: RedisStore, cluster: RedisCluster):
    other = RedisStore(cluster.url())
    await other.open()
    for _ in range(200):
        [id] = await put(store, queue="q1")
        lease, gate = await take(store, 1, "q1"), gate_in("q3", signalled=True)
        again = Again(0, 0, gates=(gate,), waits=(Wait(gate.id),))
        await asyncio.gather(store.settle(lease.token, [(0, again)]), other.signal(gate, b"", LONG))
        await promote_all(store)
        lease = await take(store, 1, "q1")
        assert ids(lease) == [id]
        await store.settle(lease.token, [(0, DONE)])
    await other.close()
