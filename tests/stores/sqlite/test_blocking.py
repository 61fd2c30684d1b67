"""The enqueue of sync code on SQLite: the calling thread commits, unless another writer is in the way."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.kit import batch, claim, counts, key, new
from headrace.errors import IdempotencyConflict, Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.sqlite.engine import writer as writing
from headrace.store.sqlite.engine.wakeup import private_folder
from headrace.store.sqlite.engine.write_lock import WriteLock
from headrace.store.sqlite.store import SqliteStore
from stores.sqlite.sync_code import SyncCode

LONG = 60
"""Seconds that no test waits: an event ends every wait."""


async def test_a_batch_is_stored_and_a_repetition_changes_nothing(sqlite_store: SqliteStore, blocking: SyncCode):
    made = batch(new(), new())
    for _ in range(2):
        assert blocking.enqueue(made).existing == {}
    assert (await sqlite_store.enqueue(made)).existing == {}
    assert await counts(sqlite_store) == {"ready": 2}


async def test_a_refused_batch_leaves_nothing(sqlite_store: SqliteStore, blocking: SyncCode):
    assert blocking.enqueue(batch(new(key=key("k")))).existing == {}
    assert list(blocking.enqueue(batch(new(key=key("k")))).existing) == [0]
    with pytest.raises(IdempotencyConflict, match="k"):
        blocking.enqueue(batch(new(), new(key=key("k", digest=b"other"))))
    assert await counts(sqlite_store) == {"ready": 1}


async def test_threads_and_the_event_loop_write_side_by_side(sqlite_store: SqliteStore, blocking: SyncCode):
    stored: list[Batch] = []

    def produce() -> None:
        while len(stored) < 50:
            made = batch(new())
            with suppress(Unavailable):  # the writing thread has the connection
                blocking.once.enqueue(made)
                stored.append(made)

    produced = asyncio.create_task(asyncio.to_thread(produce))
    here = 0
    while not produced.done():
        await sqlite_store.enqueue(batch(new()))
        here += 1
    await produced
    assert await counts(sqlite_store) == {"ready": here + 50}


async def test_a_turn_of_another_process_is_not_waited_for(sqlite_store: SqliteStore, blocking: SyncCode, file: Path):
    folder = private_folder(file)
    assert folder is not None
    other = WriteLock(folder)
    other.take()
    with pytest.raises(Unavailable, match="another process"):
        blocking.enqueue(batch(new()))
    other.leave()
    blocking.enqueue(batch(new()))
    other.close()
    assert await counts(sqlite_store) == {"ready": 1}


async def test_a_users_transaction_is_waited_for(sqlite_store: SqliteStore, blocking: SyncCode, file: Path):
    foreign = sqlite3.connect(file, isolation_level=None)
    foreign.execute("begin immediate")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def enqueue() -> Enqueued:
        loop.call_soon_threadsafe(begun.set)
        return blocking.enqueue(batch(new()))

    enqueued = asyncio.create_task(asyncio.to_thread(enqueue))
    await begun.wait()
    foreign.execute("commit")
    foreign.close()
    assert (await enqueued).existing == {}
    assert await counts(sqlite_store) == {"ready": 1}


async def test_a_waiter_of_the_same_store_is_woken(sqlite_store: SqliteStore, blocking: SyncCode):
    assert await claim(sqlite_store) is None
    await asyncio.to_thread(blocking.enqueue, batch(new()))
    assert await sqlite_store.wait(["default"], LONG)


async def test_the_log_is_moved_into_the_file_when_threads_pause(
    sqlite_store: SqliteStore, blocking: SyncCode, monkeypatch: pytest.MonkeyPatch
):
    moved = threading.Event()
    checkpoint = writing.Writer._checkpoint

    def noted(self: writing.Writer, conn: sqlite3.Connection) -> None:
        checkpoint(self, conn)
        moved.set()

    monkeypatch.setattr(writing.Writer, "_checkpoint", noted)
    for _ in range(writing._ENOUGH):
        blocking.enqueue(batch(new()))
    assert await asyncio.to_thread(moved.wait, LONG)


async def test_a_closed_store_is_refused(sqlite_store: SqliteStore, blocking: SyncCode):
    await sqlite_store.close()
    with pytest.raises(Unavailable):
        blocking.enqueue(batch(new()))
    assert sqlite_store.blocking() is None
