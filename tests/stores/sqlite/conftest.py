"""One SQLite file per test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from conftest import nothing_left_behind, opened
from headrace.store.sqlite.store import SqliteStore
from stores.sqlite.sync_code import SyncCode


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
async def sqlite_store(url: str) -> AsyncGenerator[SqliteStore]:
    """Open, by the machine's own clock."""
    store = SqliteStore(url)
    async with nothing_left_behind(), opened(store):
        yield store


@pytest.fixture
def blocking(sqlite_store: SqliteStore) -> Iterator[SyncCode]:
    caller = SyncCode(sqlite_store)
    yield caller
    caller.once.close()
