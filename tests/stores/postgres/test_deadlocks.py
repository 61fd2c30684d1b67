"""Deadlocks with transactions of other programs: the call is repeated and logged once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headrace.model.job import Batch, JobState, NewJob, UniqueLock, new_batch
from headrace.model.lane import Lane
from headrace.store.postgres.deadlocks import Deadlocks
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import blocked

LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})


def unique(*names: str) -> Batch:
    return Batch(new_batch(), [NewJob("t", b"", Lane(), unique=UniqueLock(name, LIVE, replace=True)) for name in names])


async def test_a_deadlock_is_repeated_counted_and_logged(
    pg: PostgresStore, sql: Any, caplog: pytest.LogCaptureFixture, url: str
):
    await pg.enqueue(unique("a", "b"))
    lock = "select from headrace.unique_lock where name = $1 for update"
    observer = await asyncpg.connect(url)
    try:
        # Whichever session looks for a circle first is the one that the server ends.
        while pg._server.pool.deadlocks.count == 0:
            async with asyncio.timeout(60):
                transaction = sql.transaction()
                await transaction.start()
                await sql.fetch(lock, "b")
                call = asyncio.create_task(pg.enqueue(unique("a", "b")))
                await blocked(observer)
                try:
                    await sql.fetch(lock, "a")
                except asyncpg.DeadlockDetectedError:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                assert (await call).existing == {}
    finally:
        await observer.close()
    said = [record for record in caplog.records if record.name == "headrace.store"]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert "deadlock" in said[0].getMessage()
    assert "waits for" in said[0].getMessage()
    assert await sql.fetchval("select sum(hi - lo + 1) from headrace.ready") == 2


def test_one_line_for_each_outage(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr("headrace.store.postgres.deadlocks.time.monotonic", lambda: now)
    noticed, error = Deadlocks(), asyncpg.DeadlockDetectedError("deadlock detected")
    for _ in range(5):
        noticed.note(error, "db")
    noticed.note(asyncpg.UniqueViolationError("no deadlock"), "db")
    assert len(caplog.records) == 1
    now += 61
    noticed.note(error, "db")
    assert [getattr(record, "deadlocks", None) for record in caplog.records] == [1, 6]
