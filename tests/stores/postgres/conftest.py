"""Fixtures of the PostgreSQL store's own tests: a database per test, plain connections beside the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from databases import Databases
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """A migrated, empty database."""
    made = databases.take()
    yield made
    databases.give_back(made)


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
