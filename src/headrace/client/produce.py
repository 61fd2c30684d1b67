"""The producer's part of an app: bulk calls, and jobs in the caller's transaction. `ax` is the async form of `x`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.client import enqueue_log
from headrace.client.bulk import BulkLoad, gather, loads
from headrace.client.client import Placed, transactional
from headrace.client.enqueue_hooks import Enqueueing
from headrace.client.handles import Handles
from headrace.client.per_loop import Clients
from headrace.model.job import Batch, JobId, NewJob, new_batch
from headrace.runtime.portal import Portal
from headrace.task.hooks import Hooks
from headrace.task.task import Home, JobCall

if TYPE_CHECKING:
    from headrace.outbox import Outbox
    from headrace.store.contract import Transactional

R = TypeVar("R")


class InlineRunner(Protocol):
    """Runs jobs in the code that enqueues them, for tests."""

    def run(self, ids: Sequence[JobId]) -> None: ...

    async def arun(self, ids: Sequence[JobId]) -> None: ...


class Producer:
    """The methods of `Headrace` that make jobs, besides its tasks."""

    hooks: Hooks
    _portal: Portal
    _clients: Clients
    _home: Home
    _outbox: Outbox | None = None
    inline_runner: InlineRunner | None = None
    """Set while `app.inline()` is in force: runs the jobs of each enqueue call before the call returns."""

    @property
    def clients(self) -> Clients:
        """The app's clients, one for each event loop."""
        return self._clients

    # ── in bulk ──────────────────────────────────────────────────────────────

    def enqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> Handles[R]:
        """Enqueue `task.job(…)`s, one round trip per 1,000 jobs or 2 MB, each all or nothing; with `tx` all of them."""
        handles = Handles[R](self._home)
        if self.hooks.on_enqueue:
            with Enqueueing(self.hooks.on_enqueue) as hooked:
                try:
                    self._enqueue_many(hooked.traced_calls(calls), tx, handles)
                finally:
                    hooked.stored(handles.stored)
        else:
            self._enqueue_many(calls, tx, handles)
        if self.inline_runner is not None and tx is None:
            self.inline_runner.run([handle.id for handle in handles if handle.created])
        return handles

    def _enqueue_many(self, calls: Iterable[JobCall[R]], tx: object | None, handles: Handles[R]) -> None:
        if tx is not None:
            for load in loads(calls):
                handles.add(load, self.put_in(tx, load.jobs))
            return
        self._portal.run(self._clients.here)
        under_way: tuple[BulkLoad[R], Future[Placed]] | None = None
        try:
            # The next thousand is encoded while the store writes the last one. No call overtakes another.
            for load in loads(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles.add(before[0], before[1].result())
                under_way = load, self._portal.start(functools.partial(self._aput, load.jobs))
            if under_way is not None:
                before, under_way = under_way, None
                handles.add(before[0], before[1].result())
        except Exception as error:
            if under_way is not None and under_way[1].exception() is None:
                handles.add(under_way[0], under_way[1].result())
            _note_stored(error, handles.stored)
            raise

    async def aenqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> Handles[R]:
        """Enqueue `task.job(…)`s, one round trip per 1,000 jobs or 2 MB, each all or nothing; with `tx` all of them."""
        handles = Handles[R](self._home)
        if self.hooks.on_enqueue:
            with Enqueueing(self.hooks.on_enqueue) as hooked:
                try:
                    await self._aenqueue_many(hooked.traced_calls(calls), tx, handles)
                finally:
                    hooked.stored(handles.stored)
        else:
            await self._aenqueue_many(calls, tx, handles)
        if self.inline_runner is not None and tx is None:
            await self.inline_runner.arun([handle.id for handle in handles if handle.created])
        return handles

    async def _aenqueue_many(self, calls: Iterable[JobCall[R]], tx: object | None, handles: Handles[R]) -> None:
        client = await self._clients.here()
        if tx is not None:
            for load in loads(calls):
                handles.add(load, await self.aput_in(tx, load.jobs))
            return
        under_way: tuple[BulkLoad[R], asyncio.Task[Placed]] | None = None
        try:
            for load in loads(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles.add(before[0], await before[1])
                under_way = load, asyncio.create_task(client.enqueue(load.jobs))
                await asyncio.sleep(0)  # The call starts, so that the next thousand is encoded while the store writes.
            if under_way is not None:
                before, under_way = under_way, None
                handles.add(before[0], await before[1])
        except Exception as error:
            if under_way is not None:
                await asyncio.wait([under_way[1]])
                if under_way[1].exception() is None:
                    handles.add(under_way[0], under_way[1].result())
            _note_stored(error, handles.stored)
            raise

    async def _aput(self, jobs: Sequence[NewJob]) -> Placed:
        return await (await self._clients.here()).enqueue(jobs)

    # ── in the caller's transaction ──────────────────────────────────────────

    def put_in(self, tx: object, jobs: Sequence[NewJob]) -> Placed:
        """Write jobs in the caller's transaction and thread. The portal's store only provides the statements."""
        together, ords = gather(jobs)
        batch = Batch(new_batch(), together)
        writer: Outbox | Transactional
        if self._outbox is not None:
            writer = self._outbox  # a full queue delays the relay, not the caller's transaction
        else:
            client = self._portal.run(self._clients.here)
            writer = transactional(client.store)
            if client.has_bounds:
                self._portal.run(lambda: client.admit(jobs))
        placed = Placed(batch.id, writer.enqueue_in(tx, batch).existing, ords)
        enqueue_log.tell_all(jobs, placed)
        return placed

    async def aput_in(self, tx: object, jobs: Sequence[NewJob]) -> Placed:
        """The same for async code."""
        together, ords = gather(jobs)
        batch = Batch(new_batch(), together)
        writer: Outbox | Transactional
        if self._outbox is not None:
            writer = self._outbox
        else:
            client = await self._clients.here()
            writer = transactional(client.store)
            await client.admit(jobs)
        placed = Placed(batch.id, (await writer.aenqueue_in(tx, batch)).existing, ords)
        enqueue_log.tell_all(jobs, placed)
        return placed

    def outbox(self, database: object) -> Outbox:
        """Jobs with `tx=` go through a table of this database, for stores that cannot join its transactions.

        `database`: its postgresql:// or sqlite:/// URL, a SQLAlchemy engine, or a Django alias. Any worker of this app
        relays what was committed into the store.
        """
        from headrace.outbox import Outbox

        self._outbox = Outbox(database)
        return self._outbox

    @property
    def has_outbox(self) -> bool:
        """Whether jobs with `tx=` go through an outbox, and so arrive later."""
        return self._outbox is not None


def _note_stored(error: Exception, count: int) -> None:
    if count:
        error.add_note(f"{count:,} jobs of this call had been enqueued before")
