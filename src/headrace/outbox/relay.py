"""One round of the relay: some committed rows → the store. The outcome of each row is written back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec

from headrace.errors import ConfigError, EnqueueError, OutcomeUnknown, QueueFull, StoreError, StoreFull, Unavailable
from headrace.model.job import Batch
from headrace.outbox import row
from headrace.outbox.database import Session, Statement
from headrace.outbox.table import RELAY, TABLE
from headrace.store.contract import Store

ROWS: Final = 500
"""Rows of one round, at most."""
_BYTES: Final = 4 << 20
"""Bytes of jobs that one round reads, at most. One row may have more."""
_SECONDS: Final = 5.0
"""Seconds for which a round takes rows. It limits how long the database keeps them locked."""
_AT_ONCE: Final = 32
"""Lines of rows that are handed over at the same time."""
_HELD: Final = 15
"""Seconds for which a relay has a SQLite outbox to itself."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0
"""Seconds until a row that the store did not accept is tried again."""
_MOST_WAITS: Final = 100_000

_LIST = f"select batch, length(jobs) from {TABLE} where refused is null and batch > ? order by batch limit ?"
# One relay runs at a time, so that calls arrive in their order and none arrives twice. The timeout ends a relay that
# hangs. Rows are locked, too, and the relay skips rows that an operator has locked by hand.
_ENTER_POSTGRES = (
    "select pg_try_advisory_xact_lock(1752330082, to_regclass(?)::oid::int), "
    "set_config('idle_in_transaction_session_timeout', '60s', true)"
)
_READ_POSTGRES = (
    f"select batch, jobs, extract(epoch from clock_timestamp() - written_at) from {TABLE} "
    "where refused is null and batch in (*) order by batch for update skip locked"
)
# A lock of SQLite covers the whole file, and the user's writers would wait for it. So the lock is a row with an end.
_ENTER_SQLITE = (
    f"insert into {RELAY} (one, relay, until) values (1, ?, julianday('now') + ? / 86400.0) on conflict (one) do update "
    f"set relay = excluded.relay, until = excluded.until where {RELAY}.until <= julianday('now') returning one"
)
_READ_SQLITE = (
    f"select batch, jobs, (julianday('now') - written_at) * 86400 from {TABLE} "
    "where refused is null and batch in (*) order by batch"
)
_LEAVE_SQLITE = f"delete from {RELAY} where relay = ?"
_DELETE = f"delete from {TABLE} where batch in (*)"
_REFUSE = f"update {TABLE} set refused = ? where batch = ?"

_log = logging.getLogger("headrace.outbox")


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """The result of a round."""

    moved: int = 0
    next: str | None = None
    """The row behind which to go on. None: that was the last page."""


@dataclass(slots=True)
class Carried:
    """The outcomes of the rows of a round."""

    batches: list[str] = field(default_factory=list[str])
    """The rows that the round takes."""
    last: str = ""
    """The last row that was listed."""
    passed: int = 0
    """Rows that are skipped, because they were put off."""
    more: bool = False
    """There are more rows behind the last one."""
    rows: int = 0
    """The number of rows that were read."""
    moved: list[str] = field(default_factory=list[str])
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    later: int = 0
    """Rows that the store did not accept this time."""
    trouble: BaseException | None = None
    """The error that ended the round early. The caller raises it."""


class Relay:
    """Runs rounds over one session, and remembers what was put off."""

    def __init__(self, session: Session, dialect: str, store: Store) -> None:
        self._session = session
        self._dialect = dialect
        self._store = store
        self._name = uuid4().hex
        self._rows, self._queues = _Waits(), _Waits()

    async def round(self, after: str = "", limit: int = ROWS) -> OutboxPage:
        """Take up to `limit` rows behind `after`. Outages raise, after the outcomes so far are written back."""
        carried = await (self._round_postgres if self._dialect == "postgresql" else self._round_sqlite)(after, limit)
        if carried.trouble is not None:
            raise carried.trouble
        return OutboxPage(len(carried.moved), _next(after, carried) if carried.more else None)

    async def _round_postgres(self, after: str, limit: int) -> Carried:
        async with self._session.transaction() as execute:
            carried = self._within(await execute(_LIST, (after, limit)), limit)
            if not carried.batches:
                return carried
            if not (await execute(_ENTER_POSTGRES, (TABLE,)))[0][0]:
                return Carried()
            await self._carry(await execute(*_listed(_READ_POSTGRES, carried.batches)), carried)
            for sql, args in _written(carried):
                await execute(sql, args)
        return carried

    async def _round_sqlite(self, after: str, limit: int) -> Carried:
        ask = self._session.ask
        carried = self._within(await ask((_LIST, (after, limit))), limit)
        if not carried.batches:
            return carried
        if not await ask((_ENTER_SQLITE, (self._name, _HELD))):
            return Carried()
        await self._carry(await ask(_listed(_READ_SQLITE, carried.batches)), carried)
        await ask(*_written(carried), (_LEAVE_SQLITE, (self._name,)))
        return carried

    def _within(self, listed: Sequence[Sequence[Any]], limit: int) -> Carried:
        """As many of these rows as a round may read, without those that were put off."""
        carried = Carried(more=len(listed) == limit)
        room = _BYTES
        for batch, size in listed:
            if self._rows.has(batch):
                carried.passed += 1
            elif carried.batches and size > room:
                carried.more = True
                break
            else:
                room -= size
                carried.batches.append(batch)
            carried.last = batch
        return carried

    # ── into the store ──────────────────────────────────────────────────────

    async def _carry(self, rows: Sequence[Sequence[Any]], carried: Carried) -> None:
        """Hand over every row, those of one line one by one. Raises nothing, because outcomes must be written."""
        carried.rows = len(rows)
        lines = iter(_lines(list(self._readable(rows, carried))))
        until = asyncio.get_running_loop().time() + _SECONDS
        try:
            await asyncio.gather(*(self._feed(lines, carried, until) for _ in range(min(_AT_ONCE, len(rows)))))
        except BaseException as error:  # noqa: BLE001  # called off, or a bug: the caller hears it when all is written
            carried.trouble = carried.trouble or error

    def _readable(self, rows: Sequence[Sequence[Any]], carried: Carried) -> Iterator[tuple[str, Batch]]:
        for hex, jobs, waited in rows:
            try:
                yield hex, row.read(hex, bytes(jobs), float(waited))
            except (msgspec.DecodeError, ValueError, OverflowError) as error:
                self._refuse(hex, f"this row cannot be read: {error}", carried)

    async def _feed(self, lines: Iterator[list[tuple[str, Batch]]], carried: Carried, until: float) -> None:
        clock = asyncio.get_running_loop().time
        for line in lines:
            for hex, batch in line:
                if carried.trouble is not None or clock() >= until:
                    return
                await self._hand_over(hex, batch, carried)

    async def _hand_over(self, hex: str, batch: Batch, carried: Carried) -> None:
        if self._queues and (full := {job.lane.queue for job in batch.jobs if self._queues.has(job.lane.queue)}):
            # No row overtakes an earlier one of its queue that was put off.
            self._rows.copy(hex, self._queues, full.pop())
            carried.later += 1
            return
        try:
            await self._store.enqueue(batch)
        except QueueFull as error:
            self._wait_for(error.queue, hex, error, carried)
        except ConfigError as error:
            # A missing right or a foreign key concerns the row's queue, or all queues.
            self._wait_for(batch.jobs[0].lane.queue, hex, error, carried)
        except EnqueueError as error:
            # Another try would fail, too.
            self._refuse(hex, str(error), carried)
        except (Unavailable, OutcomeUnknown, StoreFull) as error:
            carried.trouble = carried.trouble or error
        except StoreError as error:
            self._put_off(hex, error, carried)
        except Exception as error:  # noqa: BLE001  # whatever it is about this row, the others go on
            self._put_off(hex, error, carried)
        else:
            carried.moved.append(hex)
            if self._queues:
                self._queues.drop({job.lane.queue for job in batch.jobs})

    def _refuse(self, hex: str, why: str, carried: Carried) -> None:
        # The row stays in the table, where an operator can see it.
        _log.error("outbox: %s is refused: %s", _shown(hex), why)
        carried.refused.append((hex, why.replace("\0", "\\0").encode(errors="backslashreplace").decode()))

    def _wait_for(self, queue: str, hex: str, error: Exception, carried: Carried) -> None:
        carried.later += 1
        if self._queues.add(queue):
            _log.warning("outbox: calls for the queue %s wait, the others go on: %s", queue, error)
        self._rows.copy(hex, self._queues, queue)

    def _put_off(self, hex: str, error: Exception, carried: Carried) -> None:
        carried.later += 1
        if self._rows.add(hex):
            _log.error(
                "outbox: the store does not accept %s, which is tried again; the others go on: %s: %s",
                _shown(hex),
                type(error).__name__,
                error,
            )


class _Waits:
    """What was put off and until when. Each time doubles the wait."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def has(self, name: str) -> bool:
        """Whether it is put off at the moment."""
        wait = self._until.get(name)
        return wait is not None and wait[0] > asyncio.get_running_loop().time()

    def add(self, name: str) -> bool:
        """Put it off. True: for the first time."""
        now = asyncio.get_running_loop().time()
        if len(self._until) >= _MOST_WAITS:
            self._until = {key: wait for key, wait in self._until.items() if wait[0] > now}
        before = self._until.get(name)
        wait = _FIRST_WAIT if before is None else min(2 * before[1], _LONGEST_WAIT)
        self._until[name] = now + wait, wait
        return before is None

    def drop(self, names: set[str]) -> None:
        for name in names:
            self._until.pop(name, None)

    def copy(self, name: str, others: _Waits, other: str) -> None:
        """Put it off for as long as `other` of `others`."""
        self._until[name] = others._until[other]


def _next(after: str, carried: Carried) -> str:
    tried = len(carried.moved) + len(carried.refused) + carried.later
    if tried < carried.rows:
        # The round's time was over. Rows that were not tried come first, so that no other row overtakes them.
        return after
    return carried.last if carried.later or carried.passed or carried.rows < len(carried.batches) else after


def _lines(rows: Sequence[tuple[str, Batch]]) -> Iterable[list[tuple[str, Batch]]]:
    """Lines of rows that may arrive at the same time. Rows that share a lane, a key or a lock are in one line."""
    by_mark: dict[object, list[tuple[str, Batch]]] = {}
    for one in rows:
        marks = _marks(one[1])
        line, *others = {id(line): line for mark in marks if (line := by_mark.get(mark))}.values() or ([],)
        for other in others:
            line += other
            by_mark.update({mark: line for mark, at in by_mark.items() if at is other})
        line.append(one)
        by_mark.update(dict.fromkeys(marks, line))
    return {id(line): line for line in by_mark.values()}.values()


def _marks(batch: Batch) -> set[object]:
    marks: set[object] = {batch.id}
    for job in batch.jobs:
        marks.add(job.lane)
        if job.key is not None:
            marks.add(("key", job.task, job.key.name))
        if job.unique is not None:
            marks.add(("unique", job.task, job.unique.name))
    return marks


def _written(carried: Carried) -> list[Statement]:
    """The statements that write the outcomes back."""
    deleted = [_listed(_DELETE, carried.moved)] if carried.moved else []
    return [*deleted, *((_REFUSE, (why, hex)) for hex, why in carried.refused)]


def _listed(sql: str, batches: Sequence[str]) -> Statement:
    """The statement with one `?` for each row in place of `(*)`."""
    return sql.replace("(*)", f"({', '.join('?' * len(batches))})"), tuple(batches)


def _shown(hex: str) -> str:
    with suppress(ValueError):
        return str(UUID(hex=hex))
    return repr(hex)
