"""`replicas=N`: no write is confirmed before that many replicas have it, on any connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from conformance.kit import batch, ids, new, states, take
from headrace.errors import OutcomeUnknown
from headrace.model.job import JobState
from headrace.model.outcome import DONE
from headrace.store.redis.store import RedisStore
from servers.redis import Flavour, RedisServer
from stores.redis.kit import asked_until_answered, eventually


@pytest.fixture(params=["redis", "valkey"])
def primary(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    flavour: Flavour = request.param
    with RedisServer.start(flavour, {"repl-diskless-sync-delay": "0"}) as server:
        yield server


@pytest.fixture
def replica(primary: RedisServer, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    flavour: Flavour = request.node.callspec.params["primary"]
    follows = {"masterauth": primary.password, "replicaof": f"127.0.0.1 {primary.port}"}
    with RedisServer.start(flavour, follows, password=primary.password) as server:
        yield server
        server.thaw()


@pytest.fixture
async def store(primary: RedisServer, replica: RedisServer) -> AsyncIterator[RedisStore]:
    await eventually(lambda: "state=online" in primary.command("INFO", "replication"))
    store = RedisStore(primary.url(replicas="1"))
    await store.open()
    yield store
    await store.close()


async def test_a_repeated_enqueue_is_not_confirmed_by_a_connection_that_wrote_nothing(
    store: RedisStore, primary: RedisServer, replica: RedisServer
):
    made = batch(new())
    replica.freeze()
    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
        await store.enqueue(made)
    primary.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
        await store.enqueue(made)
    replica.thaw()
    await asked_until_answered(store.enqueue, made)
    assert "hr:{default}:" not in primary.command("KEYS", "*").split("\n")


async def test_a_settle_that_was_not_confirmed_may_be_repeated(store: RedisStore, replica: RedisServer):
    await asked_until_answered(store.enqueue, batch(new(), new(), new()))
    lease = await take(store)
    done = [(at, DONE) for at in range(3)]
    replica.freeze()
    with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
        await store.settle(lease.token, done)
    replica.thaw()
    assert await asked_until_answered(store.settle, lease.token, done) == frozenset()
    assert await states(store, ids(lease)) == [JobState.DONE] * 3


async def test_a_full_server_confirms_what_it_takes(store: RedisStore, primary: RedisServer):
    await asked_until_answered(store.enqueue, batch(new(), new(), new()))
    lease = await take(store)
    primary.command("CONFIG", "SET", "maxmemory", "1000000")
    done = [(at, DONE) for at in range(3)]
    assert await asked_until_answered(store.settle, lease.token, done) == frozenset()
