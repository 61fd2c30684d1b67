"""Sync code that enqueues on SQLite, as the app does it."""

from __future__ import annotations

from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.sqlite.engine.connection import InUse
from headrace.store.sqlite.store import SqliteStore


class SyncCode:
    """Enqueues in the calling thread.

    The store refuses such a call while its writing thread uses the connection, which it still may when it has answered the
    call before. An app then leaves the job to that thread; a test repeats the call.
    """

    def __init__(self, store: SqliteStore) -> None:
        found = store.blocking()
        assert found is not None
        self.once = found

    def enqueue(self, batch: Batch) -> Enqueued:
        while True:
            try:
                return self.once.enqueue(batch)
            except InUse:
                continue
