"""The write-ahead log: moved into the file by a writer that is idle, and a warning where it cannot be."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest

from conformance.kit import put
from headrace.store.sqlite.engine import files, writer
from headrace.store.sqlite.store import SqliteStore


def jobs_in_the_file_itself(file: Path) -> int:
    """Without what is in the log only."""
    conn = sqlite3.connect(f"file:{file}?immutable=1", uri=True)
    try:
        return conn.execute("select count(*) from headrace_job").fetchone()[0]
    except sqlite3.DatabaseError:
        return 0  # not even the tables
    finally:
        conn.close()


async def test_an_idle_writer_moves_the_log_into_the_file(sqlite_store: SqliteStore, file: Path):
    for _ in range(writer._ENOUGH):
        await put(sqlite_store)
    async with asyncio.timeout(60):
        while jobs_in_the_file_itself(file) < writer._ENOUGH - 1:
            await sqlite_store.wait(("other",), 0.05)


async def test_a_log_that_grows_is_warned_of(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sqlite_store._files, "_long_log", 1000)
    await put(sqlite_store)
    with caplog.at_level(logging.WARNING, "headrace.sqlite"):
        sqlite_store._files.compare()
        sqlite_store._files.compare()
    assert [record.getMessage().partition(" has grown")[0][-4:] for record in caplog.records] == ["-wal"]
    assert files.LONG_LOG > 1000
