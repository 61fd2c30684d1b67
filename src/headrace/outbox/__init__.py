"""The outbox: jobs for a store that cannot join your SQL transaction, written into a table that can.

    outbox = Outbox("postgresql://…")        # or sqlite:///…, a SQLAlchemy engine, a Django alias
    outbox.enqueue_in(tx, batch)             # commits or rolls back with your own writes
    await outbox.run(store)                  # in any worker: moves what is committed into the store

A call is one row. The relay reads rows, enqueues each under the batch id that it was written with, then deletes it:
at least once as a delivery and, because enqueueing an existing batch changes nothing, exactly once as jobs for as long
as the store keeps them. A relay that crashes in between leaves its rows to the next relay. Several relays may run at
once: they take turns, one round each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.outbox import row, user_table
from headrace.outbox.carrier import async_execute, sync_execute
from headrace.outbox.database import Session, database_at
from headrace.outbox.relay import ROWS, OutboxPage, Relay
from headrace.outbox.table import POSTGRES, SQLITE, SQLITE_RELAY, TABLE
from headrace.store.contract import Store

__all__ = ["POSTGRES", "SQLITE", "TABLE", "Depth", "Outbox"]

_INSERT = f"insert into {TABLE} (batch, jobs) values (?, ?)"
_COUNT = f"select count(*) - count(refused), count(refused) from {TABLE}"

_LONGEST_PAUSE: Final = 10.0
_PASS: Final = 50
"""Pages after which a relay begins at the first again, so that rows that were put off do not wait longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Depth:
    """Numbers of rows in the table."""

    waiting: int
    """Rows that the relay has not moved yet."""
    refused: int
    """Rows that the store will never accept (their key was used with other arguments, …); `refused` says why."""


def _must_exist() -> AbstractContextManager[None]:
    return user_table.must_exist(TABLE, prepare="outbox.prepare", module="headrace.outbox")


class Outbox:
    """A table of jobs in the user's own database, and the relay that empties it."""

    def __init__(self, database: object) -> None:
        self._database = database_at(database)

    async def prepare(self) -> None:
        """Create the table if it is missing."""
        async with self._database.session() as session:
            await self._prepare(session, await self._dialect())

    async def _prepare(self, session: Session, dialect: str) -> None:
        definition = POSTGRES if dialect == "postgresql" else SQLITE
        await user_table.create(self._database, session, TABLE, definition)
        if dialect == "sqlite":
            await session.ask((SQLITE_RELAY, ()))

    async def _dialect(self) -> str:
        return await user_table.dialect_of(self._database, "an outbox is a table")

    # ── in the user's transaction ────────────────────────────────────────────

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        """Write a batch inside the user's transaction. The relay finds existing jobs with the same keys later."""
        if batch.jobs:
            with _must_exist():
                sync_execute(tx)(_INSERT, row.written(batch))
        return Enqueued({})

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        """The same for async connections. Sync connections work, too."""
        if batch.jobs:
            execute = async_execute(tx)
            if execute is None:
                return self.enqueue_in(tx, batch)
            with _must_exist():
                await execute(_INSERT, row.written(batch))
        return Enqueued({})

    # ── relaying ─────────────────────────────────────────────────────────────

    async def depth(self) -> Depth:
        """How many calls wait in the table, and how many the store has refused."""
        async with self._database.session() as session:
            [(waiting, refused)] = await session.ask((_COUNT, ()))
        return Depth(int(waiting), int(refused))

    async def relay(self, store: Store, limit: int = ROWS) -> int:
        """Move up to `limit` committed calls into the store. Returns how many. 0: there are none to move now."""
        async with self._relaying(store) as relay:
            page = await relay.round(limit=limit)
            while not page.moved and page.next is not None:
                page = await relay.round(page.next, limit)
        return page.moved

    async def run(
        self, store: Store, *, poll: timedelta = timedelta(milliseconds=500), stop: asyncio.Event | None = None
    ) -> None:
        """Relay until `stop` is set (None: without end), also through outages of either side."""
        stop = stop or asyncio.Event()
        trouble: tuple[type[Exception], ...] = (StoreError, ConfigError, *self._database.errors())
        pauses = _Pauses(poll.total_seconds())
        while not stop.is_set():
            try:
                async with self._relaying(store) as relay:
                    await _keep_on(relay, pauses, stop)
            except trouble as error:
                pause = pauses.longer()
                # A driver's message may contain values of the row.
                why = str(error) if isinstance(error, HeadraceError) else type(error).__name__
                _log.warning("outbox: the relay goes on in %.1f s: %s", pause, why)
                await _pause(stop, pause)

    @asynccontextmanager
    async def _relaying(self, store: Store) -> AsyncGenerator[Relay]:
        dialect = await self._dialect()
        async with self._database.session() as session:
            await self._prepare(session, dialect)
            yield Relay(session, dialect, store)


async def _keep_on(relay: Relay, pauses: _Pauses, stop: asyncio.Event) -> None:
    """Relay page after page, and begin again after the last."""
    page, pages = OutboxPage(), 0
    while not stop.is_set():
        pages += 1
        page = await relay.round(page.next or "")
        pause = pauses.over()
        if page.next is not None and pages < _PASS:
            continue
        if not page.moved:
            await _pause(stop, pause)
        page, pages = OutboxPage(), 0


class _Pauses:
    """How long to sleep: the poll interval, doubled each time that nothing could be moved."""

    def __init__(self, poll: float) -> None:
        self._poll = self._pause = poll

    def over(self) -> float:
        self._pause = self._poll
        return self._pause

    def longer(self) -> float:
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return self._pause


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
