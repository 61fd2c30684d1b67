"""A full server takes nothing new, and everything that makes room or holds jobs back goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conformance.kit import (
    JANITOR,
    LONG,
    TTL,
    WORKER,
    claim,
    counts,
    find_all,
    ids,
    new,
    put,
    put_jobs,
    rule,
    settle_all,
    state,
    take,
)
from conformance.test_gates import a_gate, promote_all
from headrace.errors import StoreFull
from headrace.model.gate import Edge, Needs, Wait
from headrace.model.job import Batch, JobState, job_id, new_batch
from headrace.model.lease import Band, new_token
from headrace.model.outcome import DONE, Again
from headrace.model.records import CancelAnswer, Filter
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer


@pytest.fixture
async def store(own_server: RedisServer, clock: FakeClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(own_server.url(), clock=clock)
    await store.open()
    yield store
    await store.close()


def fill(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "maxmemory", "1000000")


async def test_what_is_held_back_elsewhere_stops_no_claim(store: RedisStore, own_server: RedisServer, clock: FakeClock):
    """What may open soon is the first thing that a claim looks at, and notes."""
    await put(store, 5, queue="a", tenant="acme")
    made = await put(store, 5, queue="b")
    await store.pause("acme", kind="tenant")
    assert await claim(store, 5, "a") is None
    await store.pause("acme", kind="tenant", until=clock.now() + LONG)
    fill(own_server)
    assert ids(await take(store, 5, "b")) == made


async def test_a_claim_that_is_for_nothing_there_is_told_so(store: RedisStore, own_server: RedisServer):
    await rule(store, "shop", concurrency=0)
    await put_jobs(store, new(), new(tenant="acme", limits=("shop",)))
    own_server.command("DEL", "hr:{default}:w")
    fill(own_server)
    assert await claim(store, 5, bands=(Band(5, 9, 5),), only_bands=True) is None
    own_server.command("DEL", "hr:{default}:w")
    assert await claim(store, 5, tenant="acme") is None
    assert len((await take(store)).jobs) == 1


async def test_an_operator_can_help(store: RedisStore, own_server: RedisServer, clock: FakeClock):
    made = await put(store, 10)
    later = await put(store, 2, due=LONG)
    await rule(store, "shop", concurrency=5)
    lease = await take(store, 4)
    fill(own_server)
    assert await store.delete([made[9], later[0]]) == {made[9], later[0]}
    stopped = await store.cancel([made[8], made[0], later[1]])
    assert list(stopped.values()) == [CancelAnswer.CANCELLED, CancelAnswer.ASKED, CancelAnswer.CANCELLED]
    # An operator's own process, which has never enqueued there.
    other = RedisStore(own_server.url(), clock=clock)
    await other.open()
    await other.pause("default")
    assert await claim(store) is None
    await other.resume("default")
    await other.pause("acme", kind="tenant")
    await rule(other, "shop", concurrency=1)
    await other.close()
    assert await store.detach(lease.token, 3, new_token())
    assert await store.abandon(WORKER, "gone") == 2
    assert len(await store.reap(JANITOR, TTL)) == 2
    await settle_all(store, await take(store))
    with pytest.raises(StoreFull):
        await put(store)
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    assert await counts(store) == {"running": 4}


async def test_a_queue_that_is_new_is_still_refused(store: RedisStore, own_server: RedisServer):
    fill(own_server)
    with pytest.raises(StoreFull):
        await store.pause("unheard-of")
    assert own_server.command("SMEMBERS", "hr:queues") == ""


async def test_reading_goes_on_and_writes_nothing(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    """Every half minute the clock is asked for again, and the list of queues looked at."""
    store = RedisStore(own_server.url())
    await store.open()
    [id] = await put(store)
    fill(own_server)
    monkeypatch.setattr("headrace.store.redis.store_clock._FRESH", 0.0)
    assert [job and job.state for job in await store.get([id])] == [JobState.READY]
    assert len(await find_all(store, Filter(queue="default"))) == 1
    assert await store.workers() == []
    assert (await store.heartbeat([], TTL)).lost == frozenset()
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    # The server was flushed: names that are still in use are written again.
    own_server.command("DEL", "hr:queues")
    await store.now()
    assert own_server.command("SMEMBERS", "hr:queues") == "default"
    lease = await take(store)
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    await store.close()


async def test_ends_count_and_let_go_what_waits(store: RedisStore, own_server: RedisServer, clock: FakeClock):
    id, gate, event = new_batch(), a_gate(), a_gate(signalled=True)
    edges = (Edge(job_id(id, 0), job_id(id, 1), gate.id),)
    jobs = [new(), new(), *[new(wait=Wait(gate.id))] * 1000, new(wait=Wait(job_id(id, 0), Needs.FAILED))]
    await store.enqueue(Batch(id, jobs, (gate,), edges))
    [suspends] = await put(store, queue="s")
    lease, other = await take(store, 2), await take(store, 1, "s")
    fill(own_server)
    with pytest.raises(StoreFull):
        await store.signal(event, b"", LONG)
    again = Again(0, 0, LONG, gates=(event,), waits=(Wait(event.id),))
    assert await store.settle(other.token, [(0, again)]) == frozenset()
    await settle_all(store, lease)
    await promote_all(store)
    assert await counts(store) == {"ready": 1000}
    assert await state(store, job_id(id, 1002)) is JobState.CANCELLED
    assert await state(store, suspends) is JobState.BLOCKED
    clock.advance(LONG)
    await promote_all(store)
    assert await state(store, suspends) is JobState.READY
