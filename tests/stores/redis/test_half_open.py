"""Connections that died without a word, and those to a server that is no primary any more."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta

import pytest

from conformance.kit import TTL, put, take
from headrace.model.outcome import DONE
from headrace.store.redis.client.connection import Pool
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis.kit import eventually
from stores.redis.proxy import between

PATIENT = timedelta(seconds=12)
"""A quarter of it is what a heartbeat waits for an answer."""


def pool_of(store: RedisStore) -> Pool:
    [pool] = store.client.wire._pools.values()
    return pool


async def crowd(store: RedisStore, count: int) -> None:
    """As many connections as calls at once."""
    await asyncio.gather(*(store.pauses() for _ in range(count)))


async def test_a_heartbeat_outlives_connections_that_are_half_open(server: RedisServer):
    """One of them is found out, the others go with it, and the lease is renewed on a new one."""
    server.command("FLUSHALL")
    async with between(server) as proxy:
        store = RedisStore(proxy.url)
        await store.open()
        await put(store)
        lease = await take(store)
        await crowd(store, 6)
        assert len(pool_of(store)._idle) > 2
        proxy.half_open()
        pulse = await store.heartbeat([lease.token], PATIENT)
        assert pulse.lost == frozenset()
        assert len(proxy.unheard) == 1
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        assert len(proxy.unheard) == 1
        await store.close()


async def test_a_settle_outlives_them_too(server: RedisServer):
    server.command("FLUSHALL")
    async with between(server) as proxy:
        store = RedisStore(proxy.url + "?timeout=2")
        await store.open()
        await put(store)
        lease = await take(store)
        await crowd(store, 6)
        proxy.half_open()
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        assert len(proxy.unheard) == 1
        await store.close()


async def test_a_heartbeat_waits_for_no_turn(real_store: RedisStore):
    """However many settles are under way."""
    await put(real_store)
    lease = await take(real_store)
    turns = pool_of(real_store)._turns
    while not turns.locked():
        await turns.acquire()
    assert (await real_store.heartbeat([lease.token], TTL)).lost == frozenset()


async def test_a_server_that_became_a_replica_is_left(server: RedisServer):
    """Its name leads to the new primary: so do new connections, and the old ones are not asked again."""
    server.command("FLUSHALL")
    with (
        RedisServer.start(password=server.password) as old,
        RedisServer.start(password=server.password) as new,
    ):
        async with between(old) as proxy:
            store = RedisStore(proxy.url)
            await store.open()
            await put(store)
            await crowd(store, 6)
            old.command("REPLICAOF", "127.0.0.1", str(new.port))
            proxy.lead_to(new)
            [id] = await put(store)
            assert [job and job.id for job in await store.get([id])] == [id]
            assert new.command("SMEMBERS", "hr:queues") == "default"
            await store.close()


async def test_connections_that_rest_are_given_back(
    real_store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.store.redis.client.connection._RESTED", 0.05)
    await crowd(real_store, 40)
    await eventually(lambda: server.command("CLIENT", "LIST").count("name=headrace") == 1)
    await put(real_store)


async def test_the_system_probes_silent_connections(real_store: RedisStore):
    [connection] = pool_of(real_store)._idle[:1]
    assert connection._transport is not None
    wire: socket.socket = connection._transport.get_extra_info("socket")
    assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    probes = [
        wire.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT")
    ]
    assert probes == [5, 2, 3]
