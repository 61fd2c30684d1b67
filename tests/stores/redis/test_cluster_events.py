"""Events on a cluster, signalled by a program that does not know the queue of their declaration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from conformance.kit import LONG, put, settle_all, state, take
from conformance.test_gates import a_gate, promote_all
from headrace.model.gate import Wait
from headrace.model.job import JobState
from headrace.model.outcome import Again
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisCluster


@pytest.fixture
async def stores(cluster: RedisCluster, clock: FakeClock) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    """Of a worker, and of the program that signals."""
    for node in cluster.nodes:
        node.command("FLUSHALL")
    both = RedisStore(cluster.url(), clock=clock), RedisStore(cluster.url(), clock=clock)
    for store in both:
        await store.open()
    yield both
    for store in both:
        await store.close()


async def test_a_signal_reaches_the_job_that_waits_in_another_queue(stores: tuple[RedisStore, RedisStore]):
    worker, other = stores
    event = replace(a_gate(signalled=True), queue="payouts")
    [id] = await put(worker)
    lease = await take(worker)
    await worker.settle(lease.token, [(0, Again(0, 0, gates=(event,), waits=(Wait(event.id),)))])
    assert await state(worker, id) is JobState.BLOCKED
    assert await other.signal(replace(event, queue="default"), b"yes", LONG)
    assert not await other.signal(replace(event, queue="third"), b"no", LONG)
    await promote_all(worker)
    assert await state(worker, id) is JobState.READY
    await settle_all(worker, await take(worker))


async def test_a_signal_that_came_first_is_found_in_the_queue_that_has_it(stores: tuple[RedisStore, RedisStore]):
    worker, other = stores
    event = replace(a_gate(signalled=True), queue="payouts")
    assert await other.signal(replace(event, queue="default"), b"yes", timedelta(hours=1))
    [gate] = await worker.gates([event.id])
    assert gate is not None
    assert gate.value == b"yes"
