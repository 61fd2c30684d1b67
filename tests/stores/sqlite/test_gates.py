"""Gates in SQLite: what their tables hold in the end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from conformance.test_workflow_prune import test_after_the_last_retention_nothing_is_left as everything_ends
from conftest import nothing_left_behind, opened
from headrace.store.sqlite.store import SqliteStore
from headrace.testing.clock import FakeClock

TABLES = ("gate", "edge", "blocked", "chain", "opening", "step", "job", "ending", "failure")


async def test_after_the_last_retention_no_row_is_left(url: str, file: Path, clock: FakeClock):
    async with nothing_left_behind(), opened(SqliteStore(url, clock=clock)) as store:
        await everything_ends(store, clock)
    with closing(sqlite3.connect(file)) as connection:
        rows = {name: connection.execute(f"select count(*) from headrace_{name}").fetchone()[0] for name in TABLES}
    assert rows == dict.fromkeys(TABLES, 0)
