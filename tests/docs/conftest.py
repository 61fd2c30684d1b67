"""Stores for the pages."""

from collections.abc import Iterator

import pytest

from databases import Databases
from servers.redis import RedisServer


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """A migrated, empty database."""
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.fixture
def redis_url(valkey_server: RedisServer) -> str:
    """An empty server."""
    valkey_server.command("FLUSHALL")
    return valkey_server.url()
