"""The outbox: jobs for a store that cannot join your SQL transaction, written into a table that can.

    outbox = Outbox("postgresql://…")        # or sqlite:///…, a SQLAlchemy engine, a Django alias
    outbox.enqueue_in(tx, batch)             # commits or rolls back with your own writes
    await outbox.run(store)                  # in any worker: moves what is committed into the store

A call is one row. The relay reads rows, enqueues each under the batch id that it was written with, then deletes it:
at least once as a delivery and, because a batch that is there already changes nothing, exactly once as jobs.
Whoever crashes in between leaves the row to the next relay. Several relays may run at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from headrace.errors import EnqueueError, StoreError
from headrace.job import Batch
from headrace.outbox import row
from headrace.outbox.carrier import async_execute, sync_execute
from headrace.outbox.database import database_at
from headrace.store.contract import Store
from headrace.store.terms import Enqueued

TABLE: Final = "headrace_outbox"

POSTGRES: Final = f"""
create table if not exists {TABLE} (
    batch varchar(32) primary key,
    jobs bytea not null,
    written_at timestamptz not null default now(),
    refused text
)"""
SQLITE: Final = f"""
create table if not exists {TABLE} (
    batch text primary key,
    jobs blob not null,
    written_at real not null default (julianday('now')),
    refused text
) without rowid"""
"""The table, for your own migrations; `Outbox.prepare` makes it, too."""

_INSERT = f"insert into {TABLE} (batch, jobs) values (?, ?)"
_READ = {
    "postgresql": f"select batch, jobs, extract(epoch from clock_timestamp() - written_at) from {TABLE} "
    "where refused is null order by batch limit ?",
    "sqlite": f"select batch, jobs, (julianday('now') - written_at) * 86400 from {TABLE} "
    "where refused is null order by batch limit ?",
}
_DELETE = f"delete from {TABLE} where batch = ?"
_REFUSE = f"update {TABLE} set refused = ? where batch = ?"
_COUNT = f"select count(*) - count(refused), count(refused) from {TABLE}"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Depth:
    """What is in the table."""

    waiting: int
    refused: int
    """Rows that the store will never take (their key was used with other arguments); `refused` says why."""


class Outbox:
    """A table of jobs in the user's own database, and the relay that empties it."""

    def __init__(self, database: object) -> None:
        self._database = database_at(database)

    async def prepare(self) -> None:
        """Make the table where it is missing."""
        ddl = POSTGRES if await self._database.dialect() == "postgresql" else SQLITE
        try:
            await self.depth()
        except self._database.errors():
            # Asked first: a role that may only use the table is refused even "create if not exists".
            await self._database.run([(ddl, ())])

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        """Write a batch inside the user's transaction. What keys made before is known only when it is relayed."""
        if batch.jobs:
            sync_execute(tx)(_INSERT, row.written(batch))
        return Enqueued({})

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        """The same for async connections; takes sync ones, too."""
        if batch.jobs:
            execute = async_execute(tx)
            if execute is None:
                return self.enqueue_in(tx, batch)
            await execute(_INSERT, row.written(batch))
        return Enqueued({})

    async def depth(self) -> Depth:
        [(waiting, refused)] = await self._database.run([(_COUNT, ())])
        return Depth(int(waiting), int(refused))

    async def relay(self, store: Store, limit: int = 100) -> int:
        """Move up to `limit` committed calls into the store. Answers how many it moved."""
        read = _READ[await self._database.dialect()]
        moved = 0
        for hex, jobs, waited in await self._database.run([(read, (limit,))]):
            try:
                await store.enqueue(row.read(hex, bytes(jobs), float(waited)))
            except EnqueueError as error:
                # No repetition will help. It stays where an operator can see it.
                _log.error("outbox: %s is refused: %s", UUID(hex=hex), error)
                await self._database.run([(_REFUSE, (str(error), hex))])
                continue
            await self._database.run([(_DELETE, (hex,))])
            moved += 1
        return moved

    async def run(
        self, store: Store, *, poll: timedelta = timedelta(milliseconds=500), stop: asyncio.Event | None = None
    ) -> None:
        """Relay until `stop` is set (or for ever), through outages of either side."""
        stop = stop or asyncio.Event()
        trouble: tuple[type[Exception], ...] = (StoreError, *self._database.errors())
        pause = poll.total_seconds()
        prepared = False
        while not stop.is_set():
            try:
                if not prepared:
                    await self.prepare()
                    prepared = True
                if await self.relay(store):
                    pause = poll.total_seconds()
                    continue
            except trouble as error:
                pause = min(2 * pause, 10.0)
                _log.warning("outbox: the relay goes on in %.1f s: %s", pause, type(error).__name__)
            else:
                pause = poll.total_seconds()
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                continue
