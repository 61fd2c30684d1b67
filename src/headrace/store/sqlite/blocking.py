"""The enqueue of sync code: the calling thread commits by itself, on the connection of the store's writer."""

from __future__ import annotations

from headrace.errors import Unavailable
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.engine.writer import Writer
from headrace.store.sqlite.inbox import APPEND, MOST, is_plain, row
from headrace.store.sqlite.verbs.enqueue import Prepared
from headrace.store.sqlite.verbs.wait import Waiting


class BlockingEnqueue:
    """See `contract.Blocking`. A second connection would be a second cache of the file, so it uses the writer's."""

    waits_for_keys = False

    def __init__(self, writer: Writer, waiting: Waiting, time: Timekeeper) -> None:
        self._writer = writer
        self._time = time
        self._waiting = waiting
        self._closed = False
        self._full = False
        """Whether the inbox has so many rows that the next call folds them."""

    def enqueue(self, batch: Batch) -> Enqueued:
        if self._closed:
            raise Unavailable("the store is closed: open it first")
        if is_plain(batch) and not self._full:
            awake = {batch.jobs[0].lane.queue}
            self._full = self._writer.insert_here(APPEND, row(batch, self._time.now()), awake) >= MOST
            answer = Enqueued({})
        else:
            prepared = Prepared(batch)
            answer, awake = self._writer.do_here(prepared.enqueue, prepared.pack)
            self._full = False
        if awake:
            self._waiting.hint_from_thread(awake)
        return answer

    def close(self) -> None:
        self._closed = True
