"""Real servers for the Redis store's own tests: one Redis or Valkey per run, a cluster where a test asks for it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

import pytest

from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisCluster, RedisServer
from stores.redis.proxy import Proxy, between


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with RedisServer.start() as server:
        yield server


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    """A way to the server, which is empty, that a test can cut."""
    server.command("FLUSHALL")
    async with between(server) as proxy:
        yield proxy


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """For tests that hurt it."""
    with RedisServer.start() as server:
        yield server


class OldServer(RedisServer):
    """Redis 6.2, which `scripts/setup test` fetches; it knows fewer settings than those that headrace runs on."""

    def __init__(self) -> None:
        super().__init__(Path(sys.prefix) / "servers" / "redis-server-6.2", {})
        self._settings = {"bind": "127.0.0.1", "save": ""}

    def __enter__(self) -> Self:
        return self._started()


@pytest.fixture
def old_server() -> Iterator[RedisServer]:
    with OldServer() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster.start(3) as cluster:
        yield cluster


@pytest.fixture
async def store(server: RedisServer, clock: FakeClock) -> AsyncIterator[RedisStore]:
    """On an empty server, by the test's clock."""
    server.command("FLUSHALL")
    store = RedisStore(server.url(), clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def real_store(server: RedisServer) -> AsyncIterator[RedisStore]:
    """On an empty server, by its own clock."""
    server.command("FLUSHALL")
    store = RedisStore(server.url())
    await store.open()
    yield store
    await store.close()
