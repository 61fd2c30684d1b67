"""The enqueue of sync code on Redis: the connection of its own, what breaks it, and what it leaves to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conformance.kit import batch, counts, key, new, put
from headrace.errors import IdempotencyConflict, OutcomeUnknown, StoreFull, Unavailable
from headrace.model.job import JobState, job_id
from headrace.store.redis.blocking import BlockingEnqueue, _bound
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster, RedisServer
from stores.redis.proxy import Proxy
from stores.redis.test_tls import folder, secured, url

__all__ = ["folder", "secured"]  # fixtures

LONG = 60
"""Seconds that no test waits: an event ends every wait."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent server."""
    monkeypatch.setattr("headrace.store.redis.blocking._PATIENCE", float(LONG))


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[RedisStore]:
    store = RedisStore(proxy.url)
    await store.open()
    await put(store)
    yield store
    await store.close()


@pytest.fixture
def blocking(store: RedisStore) -> Iterator[BlockingEnqueue]:
    found = store.blocking()
    assert found is not None
    yield found
    found.close()


async def test_a_batch_is_stored_and_a_repetition_changes_nothing(store: RedisStore, blocking: BlockingEnqueue):
    made = batch(new(), new())
    for _ in range(2):
        assert (await asyncio.to_thread(blocking.enqueue, made)).existing == {}
    assert (await store.enqueue(made)).existing == {}
    assert await counts(store) == {"ready": 3}


async def test_a_key_meets_its_job(store: RedisStore, blocking: BlockingEnqueue):
    first, second = batch(new(key=key("k"))), batch(new(), new(key=key("k")))
    await store.enqueue(first)
    answer = await asyncio.to_thread(blocking.enqueue, second)
    assert list(answer.existing) == [1]
    with pytest.raises(IdempotencyConflict, match="k"):
        await asyncio.to_thread(blocking.enqueue, batch(new(key=key("k", digest=b"other"))))


async def test_a_lost_answer_is_an_unknown_outcome_and_the_store_repeats_the_batch(
    store: RedisStore, blocking: BlockingEnqueue, proxy: Proxy
):
    made = batch(new())
    proxy.cut_answers = 1
    with pytest.raises(OutcomeUnknown):
        await asyncio.to_thread(blocking.enqueue, made)
    assert proxy.cuts == 1
    await store.enqueue(made)
    assert await counts(store) == {"ready": 2}
    await asyncio.to_thread(blocking.enqueue, batch(new()))
    assert await counts(store) == {"ready": 3}


async def test_a_silent_server_is_an_unknown_outcome(store: RedisStore, blocking: BlockingEnqueue, proxy: Proxy):
    await asyncio.to_thread(blocking.enqueue, batch(new()))
    assert blocking._line is not None
    _bound(blocking._line._socket, 0.05)
    assert blocking._line._socket.gettimeout() is None  # the kernel keeps it
    proxy.half_open()
    with pytest.raises(OutcomeUnknown):
        await asyncio.to_thread(blocking.enqueue, batch(new()))
    proxy.silent = False


async def test_a_connection_that_the_server_has_closed_is_replaced(
    store: RedisStore, blocking: BlockingEnqueue, server: RedisServer
):
    await asyncio.to_thread(blocking.enqueue, batch(new()))
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    line = blocking._line
    assert line is not None
    assert await asyncio.to_thread(line._readable.poll, LONG * 1000)  # the news is on its way through the proxy
    await asyncio.to_thread(blocking.enqueue, batch(new()))
    assert await counts(store) == {"ready": 3}


async def test_what_the_store_must_do_first_is_refused(
    store: RedisStore, blocking: BlockingEnqueue, server: RedisServer
):
    other = batch(new(queue="other"))
    with pytest.raises(Unavailable):  # the queue is not on the list
        await asyncio.to_thread(blocking.enqueue, other)
    await store.enqueue(other)
    await asyncio.to_thread(blocking.enqueue, batch(new(queue="other")))
    server.command("SCRIPT", "FLUSH")
    made = batch(new())
    with pytest.raises(Exception, match="NOSCRIPT"):
        await asyncio.to_thread(blocking.enqueue, made)
    await store.enqueue(made)
    await asyncio.to_thread(blocking.enqueue, batch(new()))
    assert await counts(store) == {"ready": 3}


async def test_a_closed_one_is_refused(blocking: BlockingEnqueue):
    blocking.close()
    blocking.close()
    with pytest.raises(Unavailable):
        blocking.enqueue(batch(new()))


async def test_a_server_that_is_gone_is_unavailable(own_server: RedisServer):
    store = RedisStore(own_server.url())
    await store.open()
    await put(store)
    blocking = store.blocking()
    assert blocking is not None
    own_server.stop()
    with pytest.raises(Unavailable):
        blocking.enqueue(batch(new()))
    blocking.close()
    await store.close()


async def test_a_full_server_says_so(own_server: RedisServer):
    store = RedisStore(own_server.url())
    await store.open()
    await put(store)
    blocking = store.blocking()
    assert blocking is not None
    own_server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFull):
        blocking.enqueue(batch(new()))
    blocking.close()
    await store.close()


async def test_tls_and_a_database_of_another_number(secured: tuple[RedisServer, int], folder: Path):
    address = url(secured, {"tls_ca": folder / "ours.pem"}).replace("/0?", "/3?")
    store = RedisStore(address)
    await store.open()
    await put(store)
    blocking = store.blocking()
    assert blocking is not None
    for _ in range(3):
        await asyncio.to_thread(blocking.enqueue, batch(new()))
    assert await counts(store) == {"ready": 4}
    blocking.close()
    await store.close()


async def test_jobs_go_to_their_shards(server: RedisServer):
    server.command("FLUSHALL")
    store = ShardedRedisStore(server.url(), shards={"default": 3})
    await store.open()
    blocking = store.blocking()
    assert blocking is not None
    made = [batch(new(tenant=f"t{n}")) for n in range(30)]
    for each in made[:15]:
        await store.enqueue(each)
    for each in made[15:]:
        try:
            blocking.enqueue(each)
        except Unavailable:  # no job has been in its shard yet
            await store.enqueue(each)
    ends = [job for each in made for job in await store.get([job_id(each.id, 0)])]
    assert [job and job.state for job in ends] == [JobState.READY] * 30
    assert {job.queue for job in ends if job} == {"default"}
    blocking.close()
    await store.close()


@pytest.mark.parametrize("query", ["?replicas=1", ""])
async def test_only_the_event_loop_asks_replicas_and_clusters(cluster: RedisCluster, server: RedisServer, query: str):
    assert RedisStore(server.url() + query if query else cluster.url()).blocking() is None
