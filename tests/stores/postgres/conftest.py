"""Fixtures of the PostgreSQL store's own tests: a database per test, plain connections beside the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from servers.postgres import PostgresServer


@pytest.fixture
def url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A fresh, migrated database: these tests look at plans, dead rows and partitions, so none was used before."""
    made = postgres_server.create_database(template=postgres_template)
    yield made
    postgres_server.drop_database(made)


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
