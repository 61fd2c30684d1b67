"""Stores for the pages."""

from collections.abc import Iterator

import pytest

from headrace.testing.redis_servers import RedisServer
from headrace.testing.servers import PostgresServer


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A fresh, migrated database."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def redis_url(valkey_server: RedisServer) -> str:
    """An empty server."""
    valkey_server.command("FLUSHALL")
    return valkey_server.url()
