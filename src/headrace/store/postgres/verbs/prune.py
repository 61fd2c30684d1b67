"""PRUNE: the store drops whole days of history as partitions, and single rows only where that cannot be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, NamedTuple, Self

from headrace.model.gate import NEVER_SEALED
from headrace.model.job import JobId, job_id
from headrace.model.records import Progress, Pruned, Retention
from headrace.store.postgres import migrations
from headrace.store.postgres.arguments import Day, Int4, Text, Texts, Time, Times, call, expression, fields
from headrace.store.postgres.pool import LONG, Pool
from headrace.store.postgres.server import Server

_TOO_MUCH, _BUSY = 1, 2
"""Answers of set_aside that are not 0."""
_TRIES = 5
"""How often a call asks for locks that it waits for only for a moment each."""
_RESULTS = 1000
"""Results that one call removes the bytes of."""
_NAMED = timedelta(days=60)
"""How long the store keeps the name of a worker that has left, at least."""
_NEVER = datetime(2000, 1, 1, tzinfo=UTC)
"""Before any job ended."""


@dataclass(frozen=True, slots=True)
class _Horizons:
    """What ended by these times is past retention."""

    done: datetime
    dead: datetime
    queues: list[str]
    kept: list[datetime]
    """By place in `queues`: those with a time of their own for the dead."""

    @classmethod
    def of(cls, keep: Retention, now: datetime) -> Self:
        kept = [now - length for length in keep.dead_by_queue.values()]
        return cls(now - keep.done, now - keep.dead, list(keep.dead_by_queue), kept)

    @property
    def dead_first(self) -> bool:
        """Dead letters may go before the day they lie in does."""
        return max(self.dead, *self.kept) > self.done if self.kept else self.dead > self.done

    @property
    def args(self) -> dict[str, Any]:
        """Parameters of the functions that drop. They keep every dead letter, whenever it ended."""
        return {"p_done": self.done, "p_dead": _NEVER, "p_queues": [], "p_kept": []}

    @property
    def of_dead(self) -> tuple[datetime, list[str], list[datetime]]:
        """As `dead_until` takes them."""
        return self.dead, self.queues, self.kept


class SetAsideArgs(NamedTuple):
    """See `sql/prune.sql`."""

    p_day: Day
    p_done: Time
    p_dead: Time
    p_queues: Texts
    p_kept: Times
    p_limit: Int4


class PruneRowsArgs(NamedTuple):
    """See `sql/prune.sql`."""

    p_which: Text
    p_done: Time
    p_dead: Time
    p_queues: Texts
    p_kept: Times
    p_limit: Int4


class PruneRestArgs(NamedTuple):
    """See `sql/prune.sql`."""

    p_limit: Int4
    p_now: Time | None


class PruneGatesArgs(NamedTuple):
    """See `sql/prune_gates.sql`."""

    p_done: Time
    p_dead: Time
    p_limit: Int4
    p_note: Text
    p_now: Time | None


class PruneResultsArgs(NamedTuple):
    """See `sql/prune_results.sql`."""

    p_limit: Int4
    p_now: Time | None


_SET_ASIDE: Final = call("set_aside", SetAsideArgs)
_PRUNE_ROWS: Final = call("prune_rows", PruneRowsArgs)
_COUNT: Final = len(fields(PruneRowsArgs))
_THIN_OUT: Final = "select " + expression(
    "prune_rows",
    PruneRowsArgs,
    more=f"p_from => headrace.batch_floor(${_COUNT + 1}), p_to => headrace.batch_floor(${_COUNT + 2})",
)
_PRUNE_REST: Final = call("prune_rest", PruneRestArgs)
_PRUNE_GATES: Final = call("prune_gates", PruneGatesArgs)
_PRUNE_RESULTS: Final = call("prune_results", PruneResultsArgs)


async def prune(server: Server, keep: Retention, limit: int, progress: Progress | None) -> Pruned:
    """One bounded step: at most one day dropped, at most `limit` rows deleted of each kind."""
    pool, injected = server.pool, server.injected
    [(now, days)] = await pool.rows(_DAYS, injected, write=False)
    until = _Horizons.of(keep, now)
    await _names(pool, keep, now)
    gates = await _gates(pool, until, limit, injected)
    if injected is not None:
        deleted = await _rows(pool, "everywhere", until, limit)
        await _rest(pool, limit, injected)
        results = await _results(pool, injected)
        return Pruned(deleted, more=gates or results or deleted >= limit)
    if not set(migrations.days_ahead(now.astimezone(UTC).date())) <= set(days):
        await pool.run(migrations.make_partitions, write=True)
    jobs, more = await _old_days(pool, days, until, limit, progress)
    deleted = await _rows(pool, "default", until, limit)
    await _rest(pool, limit, None)
    results = await _results(pool, None)
    return Pruned(jobs + deleted, more or deleted >= limit or results or gates)


_DAYS = "select coalesce($1::timestamptz, clock_timestamp()), array(select headrace.partition_days())"


async def expired_dead(server: Server, keep: Retention, limit: int) -> list[JobId]:
    """Dead letters past retention. Those older than the kept days lie in the default partition, by the time of their end."""
    pool, injected = server.pool, server.injected
    now = injected or await server.clock_time()
    until = _Horizons.of(keep, now)
    expired = await pool.rows(_EXPIRED.format("ending_default"), *until.of_dead, limit, write=False, timeout=LONG)
    if len(expired) < limit and (injected is not None or until.dead_first):
        expired = await pool.rows(_EXPIRED.format("ending"), *until.of_dead, limit, write=False, timeout=LONG)
    return [job_id(batch, ord) for batch, ord in expired]


# Both conditions on the state: the first is that of the index of what was not done.
_EXPIRED = """select e.batch, e.ord from headrace.{} e
where e.state <> 1 and e.state = 2 and e.finished_at <= greatest($1::timestamptz, (select max(k) from unnest($3::timestamptz[]) k))
    and e.finished_at <= headrace.dead_until(e.batch, e.ord, $1, $2, $3)
limit $4"""


async def _old_days(
    pool: Pool, days: Sequence[date], until: _Horizons, limit: int, progress: Progress | None
) -> tuple[int, bool]:
    """Drop one day; how many jobs that were, and whether there is more."""
    old = [day for day in days if _end(day) <= until.done]
    more = len(old) > 1
    dropped = 0
    if old:
        if progress is not None:
            progress(0, len(old), "days")
        answer = await _set_aside(pool, old[0], until, limit)
        if answer == _TOO_MUCH:
            dropped = await _thin_out(pool, old[0], until, limit)
            more = more or dropped >= limit
        elif answer == _BUSY:
            # A call of the next minute may get the locks.
            more = False
        if progress is not None:
            progress(1, len(old), "days")
    # This also drops what an earlier call has set aside and could not drop.
    return dropped + _number(await pool.rows("select headrace.prune_gone()", write=True, timeout=LONG)), more


async def _set_aside(pool: Pool, day: date, until: _Horizons, limit: int) -> int:
    answer = _BUSY
    for attempt in range(_TRIES):
        await asyncio.sleep(random.random() * 0.2 * attempt)
        args = SetAsideArgs(p_day=day, **until.args, p_limit=limit)
        rows = await pool.rows(_SET_ASIDE, *args, write=True, timeout=LONG)
        answer = _number(rows)
        if answer != _BUSY:
            break
    return answer


async def _thin_out(pool: Pool, day: date, until: _Horizons, limit: int) -> int:
    args = PruneRowsArgs(p_which="everywhere", **until.args, p_limit=limit)
    span = (_end(day) - timedelta(days=1), _end(day))
    rows = await pool.rows(_THIN_OUT, *args, *span, write=True, timeout=LONG)
    return _number(rows)


async def _rows(pool: Pool, which: str, until: _Horizons, limit: int) -> int:
    args = PruneRowsArgs(p_which=which, **until.args, p_limit=limit)
    rows = await pool.rows(_PRUNE_ROWS, *args, write=True, timeout=LONG)
    return _number(rows)


async def _rest(pool: Pool, limit: int, injected: datetime | None) -> None:
    await pool.rows(_PRUNE_REST, *PruneRestArgs(limit, injected), write=True, timeout=LONG)


async def _results(pool: Pool, injected: datetime | None) -> bool:
    """Drop the bytes of results whose time to live is over; whether there may be more."""
    rows = await pool.rows(_PRUNE_RESULTS, *PruneResultsArgs(_RESULTS, injected), write=True, timeout=LONG)
    return _number(rows) >= _RESULTS


async def _gates(pool: Pool, until: _Horizons, limit: int, injected: datetime | None) -> bool:
    """Drop gates whose time is over; whether there may be more."""
    args = PruneGatesArgs(until.done, until.dead, limit, NEVER_SEALED, injected)
    rows = await pool.rows(_PRUNE_GATES, *args, write=True, timeout=LONG)
    return bool(rows[0][0])


async def _names(pool: Pool, keep: Retention, now: datetime) -> None:
    """Forget the names of workers that left so long ago that the store keeps hardly any job they ended."""
    until = now - max(_NAMED, 2 * keep.dead)
    await pool.rows(
        "delete from headrace.runner r where r.at < $1 and not exists (select from headrace.worker w where w.id = r.id)",
        until,
        write=True,
    )


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _number(rows: list[Any]) -> int:
    number: int = rows[0][0]
    return number
