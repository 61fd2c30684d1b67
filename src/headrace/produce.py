"""The producer's part of an app: many jobs at once, and jobs in the caller's own transaction. Verbs come in two, `x` and `ax`."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client import CHUNK, Placed, transactional
from headrace.errors import ConfigError
from headrace.handle import Handle
from headrace.job import Batch, NewJob, new_batch
from headrace.loops import Clients
from headrace.sync import Portal
from headrace.task import Home, JobCall

if TYPE_CHECKING:
    from headrace.outbox import Outbox

R = TypeVar("R")


class Producer:
    """What `Headrace` can do to make jobs, beside its tasks."""

    _portal: Portal
    _clients: Clients
    _home: Home
    _outbox: Outbox | None = None

    # ── in bulk ──────────────────────────────────────────────────────────────

    def enqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> list[Handle[R]]:
        """Enqueue `task.job(…)`s, one round trip per 1,000, each of those all or nothing; with `tx` all of them."""
        if tx is not None:
            return [handle for some in _chunks(calls) for handle in self._handles(some, self.put_in(tx, _jobs(some)))]
        self._portal.run(self._clients.here)
        handles: list[Handle[R]] = []
        under_way: tuple[list[JobCall[R]], Future[Placed]] | None = None
        try:
            # The next thousand is encoded while the store writes the last one; none overtakes another.
            for some in _chunks(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles += self._handles(before[0], before[1].result())
                under_way = some, self._portal.start(functools.partial(self._aput, _jobs(some)))
            if under_way is not None:
                before, under_way = under_way, None
                handles += self._handles(before[0], before[1].result())
        except Exception as error:
            if under_way is not None and under_way[1].exception() is None:
                handles += self._handles(under_way[0], under_way[1].result())
            _note_stored(error, len(handles))
            raise
        return handles

    async def aenqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> list[Handle[R]]:
        """Enqueue `task.job(…)`s, one round trip per 1,000, each of those all or nothing; with `tx` all of them."""
        client = await self._clients.here()
        handles: list[Handle[R]] = []
        if tx is not None:
            for some in _chunks(calls):
                handles += self._handles(some, await self.aput_in(tx, _jobs(some)))
            return handles
        under_way: tuple[list[JobCall[R]], asyncio.Task[Placed]] | None = None
        try:
            for some in _chunks(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles += self._handles(before[0], await before[1])
                under_way = some, asyncio.create_task(client.enqueue(_jobs(some)))
                await asyncio.sleep(0)  # it begins, and the next thousand is encoded while the store writes
            if under_way is not None:
                before, under_way = under_way, None
                handles += self._handles(before[0], await before[1])
        except Exception as error:
            if under_way is not None:
                await asyncio.wait([under_way[1]])
                if under_way[1].exception() is None:
                    handles += self._handles(under_way[0], under_way[1].result())
            _note_stored(error, len(handles))
            raise
        return handles

    def _handles(self, calls: Sequence[JobCall[R]], placed: Placed) -> list[Handle[R]]:
        home, batch, existing = self._home, placed.batch, placed.existing
        if not existing:
            ords = range(len(calls)) if placed.ords is None else placed.ords
            return [Handle(home, call.codec, batch, ord) for ord, call in zip(ords, calls, strict=True)]
        return [
            Handle(home, call.codec, placed.id(place), created=place not in existing)
            for place, call in enumerate(calls)
            if not (call.skips and place in existing)
        ]

    async def _aput(self, jobs: Sequence[NewJob]) -> Placed:
        return await (await self._clients.here()).enqueue(jobs)

    # ── in the caller's transaction ──────────────────────────────────────────

    def put_in(self, tx: object, jobs: Sequence[NewJob]) -> Placed:
        """Write jobs in the caller's transaction, in the caller's thread; the portal's store only knows how."""
        batch = Batch(new_batch(), list(jobs))
        writer = self._outbox or transactional(self._portal.run(self._clients.here).store)
        return Placed(batch.id, writer.enqueue_in(tx, batch).existing)

    async def aput_in(self, tx: object, jobs: Sequence[NewJob]) -> Placed:
        """The same for async code."""
        batch = Batch(new_batch(), list(jobs))
        writer = self._outbox or transactional((await self._clients.here()).store)
        return Placed(batch.id, (await writer.aenqueue_in(tx, batch)).existing)

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
        """Whether jobs with `tx=` take the way through an outbox, and so arrive later."""
        return self._outbox is not None


def _chunks(calls: Iterable[JobCall[R]]) -> Iterator[list[JobCall[R]]]:
    source = iter(calls)
    while some := list(itertools.islice(source, CHUNK)):
        for call in some:
            if not isinstance(call, JobCall):
                raise ConfigError(f"enqueue_many takes task.job(…), not {call!r:.80}")
        yield some


def _jobs(calls: Sequence[JobCall[Any]]) -> list[NewJob]:
    return [call.job for call in calls]


def _note_stored(error: Exception, count: int) -> None:
    if count:
        error.add_note(f"{count:,} jobs of this call had been enqueued before")
