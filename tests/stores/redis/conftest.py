"""Real servers for the Redis store's own tests: one Redis or Valkey per run, a cluster where a test asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from headrace.testing.redis_servers import RedisCluster, RedisServer


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with RedisServer.start() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """For tests that hurt it."""
    with RedisServer.start() as server:
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
