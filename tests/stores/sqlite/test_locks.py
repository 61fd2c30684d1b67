"""One writer at a time: what happens to the others."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.kit import JANITOR, TTL, batch, claim, counts, ids, key, new, put, take
from headrace.errors import IdempotencyConflict, Unavailable
from headrace.model.outcome import DONE
from headrace.store.sqlite.engine import connection, thread
from headrace.store.sqlite.engine.wakeup import private_folder
from headrace.store.sqlite.store import SqliteStore
from headrace.store.sqlite.verbs import reap


@pytest.fixture
def foreign(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """Another connection, which holds the write lock."""
    conn = sqlite3.connect(file, isolation_level=None)
    yield conn
    conn.close()


async def test_calls_wait_for_a_foreign_writer(sqlite_store: SqliteStore, foreign: sqlite3.Connection):
    await put(sqlite_store)
    lease = await take(sqlite_store)
    foreign.execute("begin immediate")
    beat = asyncio.ensure_future(sqlite_store.heartbeat([lease.token], TTL))
    enqueued = asyncio.ensure_future(put(sqlite_store))
    # Reading goes on meanwhile.
    assert await counts(sqlite_store) == {"running": 1}
    assert not beat.done()
    foreign.execute("commit")
    assert (await beat).lost == frozenset()
    await enqueued
    assert await counts(sqlite_store) == {"ready": 1, "running": 1}


async def test_a_foreign_writer_who_stays(url: str, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "BUSY_TIMEOUT", 0.05)
    store = SqliteStore(url)
    await store.open()
    foreign = sqlite3.connect(file, isolation_level=None)
    foreign.execute("begin immediate")
    with pytest.raises(Unavailable, match="locked by another writer"):
        await put(store)
    foreign.execute("rollback")
    foreign.close()
    await put(store)
    assert await counts(store) == {"ready": 1}
    await store.close()


async def test_a_stuck_process_that_has_the_turn(
    sqlite_store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its lock never times out, so the call does."""
    monkeypatch.setattr(thread, "_LATE", 0.05)
    folder = private_folder(file)
    assert folder is not None
    fd = os.open(folder / "turn", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(Unavailable, match="stopped or stuck"):
        await put(sqlite_store)
    os.close(fd)
    monkeypatch.setattr(thread, "_LATE", 30)
    await put(sqlite_store)
    assert await counts(sqlite_store) == {"ready": 1}


async def test_a_reaper_who_waited_long_takes_nothing(
    sqlite_store: SqliteStore, foreign: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    """The same lock kept the worker from renewing its lease."""
    monkeypatch.setattr(reap, "_PATIENCE", 0.0)
    await put(sqlite_store)
    lease = await take(sqlite_store, ttl=timedelta(0))
    foreign.execute("begin immediate")
    reaped = asyncio.ensure_future(sqlite_store.reap(JANITOR, TTL))
    await sqlite_store.stats()
    foreign.execute("commit")
    assert await reaped == []
    assert (await sqlite_store.heartbeat([lease.token], TTL)).lost == frozenset()


async def test_a_heartbeat_goes_before_a_reaper_of_the_same_process(
    sqlite_store: SqliteStore, foreign: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reap, "_PATIENCE", 3600.0)
    await put(sqlite_store)
    lease = await take(sqlite_store, ttl=timedelta(0))
    foreign.execute("begin immediate")
    first = asyncio.ensure_future(put(sqlite_store))
    await sqlite_store.stats()
    reaped = asyncio.ensure_future(sqlite_store.reap(JANITOR, TTL))
    beat = asyncio.ensure_future(sqlite_store.heartbeat([lease.token], TTL))
    await sqlite_store.stats()
    foreign.execute("commit")
    await first
    assert (await beat).lost == frozenset()
    assert await reaped == []


async def test_calls_that_share_a_transaction_fail_alone(sqlite_store: SqliteStore):
    await sqlite_store.enqueue(batch(new(key=key("k", b"1"))))
    good = [batch(new()) for _ in range(20)]
    bad = batch(new(), new(key=key("k", b"2")))
    answers = await asyncio.gather(
        *[sqlite_store.enqueue(made) for made in good[:10]],
        sqlite_store.enqueue(bad),
        *[sqlite_store.enqueue(made) for made in good[10:]],
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [IdempotencyConflict]
    assert await counts(sqlite_store) == {"ready": 21}


async def test_a_cancelled_call_changes_nothing_if_it_had_not_begun(
    sqlite_store: SqliteStore, foreign: sqlite3.Connection
):
    foreign.execute("begin immediate")
    first = asyncio.ensure_future(put(sqlite_store))
    await sqlite_store.stats()
    second = asyncio.ensure_future(put(sqlite_store))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    foreign.execute("commit")
    await first
    assert await counts(sqlite_store) == {"ready": 1}


async def test_closing_does_not_wait_for_a_stuck_process(url: str, file: Path, monkeypatch: pytest.MonkeyPatch):
    store = SqliteStore(url)
    await store.open()
    folder = private_folder(file)
    assert folder is not None
    fd = os.open(folder / "turn", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    monkeypatch.setattr(thread, "_LATE", 0.05)
    writer = store._writer
    assert writer is not None
    with pytest.raises(Unavailable, match="stopped or stuck"):
        await put(store)
    await store.close()
    assert writer._thread.is_alive()
    os.close(fd)
    await asyncio.to_thread(writer._thread.join)


async def test_a_call_that_breaks_breaks_alone(sqlite_store: SqliteStore):
    """Its exception reaches the caller, and the thread goes on."""
    writer, reader = sqlite_store._writer, sqlite_store._reader
    assert writer is not None
    assert reader is not None

    def breaks(_: object) -> None:
        raise ZeroDivisionError

    for side in (writer, reader):
        with pytest.raises(ZeroDivisionError):
            await side.call(breaks)
    await put(sqlite_store)
    assert await counts(sqlite_store) == {"ready": 1}


async def test_looking_for_work_takes_no_lock(sqlite_store: SqliteStore, foreign: sqlite3.Connection):
    foreign.execute("begin immediate")
    assert await claim(sqlite_store) is None
    assert (await sqlite_store.promote()).moved == 0
    assert await sqlite_store.reap(JANITOR, TTL) == []
    foreign.execute("rollback")


async def test_a_long_reader_does_not_stop_writers(sqlite_store: SqliteStore, foreign: sqlite3.Connection):
    await put(sqlite_store)
    foreign.execute("begin")
    before = foreign.execute("select count(*) from headrace_job").fetchone()
    await put(sqlite_store, 10)
    lease = await take(sqlite_store)
    assert len(ids(lease)) == 11
    await sqlite_store.settle(lease.token, [(at, DONE) for at in range(11)])
    assert foreign.execute("select count(*) from headrace_job").fetchone() == before
    foreign.execute("rollback")
