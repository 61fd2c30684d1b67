"""Fixtures of the PostgreSQL store's own tests: a database per test, plain connections beside the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from conftest import migrated
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from servers.postgres import PostgresServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_disk: the commits of this test wait for the disk, as in production")


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, migrated database: these tests look at plans, dead rows and partitions, so none was used before."""
    if request.node.get_closest_marker("on_disk"):
        server: PostgresServer = request.getfixturevalue("postgres_on_disk")
        made = migrated(server.create_database())
    else:
        server = request.getfixturevalue("postgres_server")
        made = server.create_database(template=request.getfixturevalue("postgres_template"))
    yield made
    server.drop_database(made)


@pytest.fixture
async def pg(url: str) -> AsyncIterator[PostgresStore]:
    """An open store on it."""
    store = PostgresStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def sql(url: str) -> AsyncIterator[Any]:
    """A plain connection beside the store."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
