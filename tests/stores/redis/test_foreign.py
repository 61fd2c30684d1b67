"""Foreign keys under headrace's names: the error names the prefix, not types and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.kit import batch, new
from headrace.errors import ConfigError
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer


@pytest.fixture(autouse=True)
def _nothing_foreign_stays(server: RedisServer) -> Iterator[None]:
    yield
    server.command("FLUSHALL")


async def test_the_list_of_queues_is_something_else(store: RedisStore, server: RedisServer):
    server.command("SET", "hr:queues", "mine")
    with pytest.raises(ConfigError, match=r"\?prefix="):
        await store.stats()
    with pytest.raises(ConfigError, match=r"\?prefix="):
        await store.enqueue(batch(new()))


async def test_a_queue_is_something_else(store: RedisStore, server: RedisServer):
    server.command("SET", "hr:{default}:h", "mine")
    with pytest.raises(ConfigError, match=r"\?prefix="):
        await store.enqueue(batch(new()))


async def test_names_that_are_no_text(store: RedisStore, server: RedisServer):
    server.command("SADD", "hr:queues", b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"hr:queues .* \?prefix="):
        await store.stats()


@pytest.mark.parametrize("record", [b"", b"\xff\xfe", b"text", b"\x93\x01\x02\x03"])
async def test_workers_that_are_none(store: RedisStore, server: RedisServer, record: bytes):
    server.command("HSET", "hr:workers", "somebody", record)
    with pytest.raises(ConfigError, match=r"hr:workers .* \?prefix="):
        await store.workers()
