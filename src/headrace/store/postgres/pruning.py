"""Pruning: whole days of history dropped as partitions; rows one by one only where that cannot be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Self

from headrace.store.postgres import migrations
from headrace.store.postgres.pool import Pool
from headrace.store.terms import Progress, Pruned, Retention

_LONG = 600.0
_TOO_MUCH, _BUSY = 1, 2
"""Answers of set_aside that are not 0."""
_TRIES = 5
"""How often a call asks for locks that it waits for only for a moment each."""


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

    def __iter__(self) -> Iterator[datetime | list[str] | list[datetime]]:
        return iter((self.done, self.dead, self.queues, self.kept))


async def prune(
    pool: Pool, keep: Retention, limit: int, injected: datetime | None, progress: Progress | None
) -> Pruned:
    """One bounded step: at most one day dropped, at most `limit` rows deleted of each kind."""
    now: datetime = injected or (await pool.rows("select clock_timestamp()", write=False))[0][0]
    until = _Horizons.of(keep, now)
    if injected is not None:
        deleted = await _rows(pool, "everywhere", until, limit)
        await _rest(pool, limit, injected)
        return Pruned(deleted, more=bool(await pool.rows(_LEFT, *until, write=False)))
    await pool.run(migrations.make_partitions, write=True)
    jobs, more = await _old_days(pool, until, limit, progress)
    for which in ("default", "dead") if until.dead_first else ("default",):
        deleted = await _rows(pool, which, until, limit)
        jobs += deleted
        more = more or deleted >= limit
    await _rest(pool, limit, None)
    return Pruned(jobs, more)


_LEFT = """select 1 from headrace.ending e where e.finished_at <= case when e.state = 2
    then headrace.dead_until(e.batch, e.ord, $2::timestamptz, $3, $4) else $1::timestamptz end limit 1"""


async def _old_days(pool: Pool, until: _Horizons, limit: int, progress: Progress | None) -> tuple[int, bool]:
    """Drop one day; how many jobs that were, and whether there is more."""
    days: list[date] = [row[0] for row in await pool.rows("select headrace.partition_days()", write=False)]
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
            # Another call of the next minute may find a moment for it.
            more = False
        if progress is not None:
            progress(1, len(old), "days")
    # Also what an earlier call has set aside and could not drop.
    return dropped + _number(await pool.rows("select headrace.prune_gone()", write=True, timeout=_LONG)), more


async def _set_aside(pool: Pool, day: date, until: _Horizons, limit: int) -> int:
    answer = _BUSY
    for attempt in range(_TRIES):
        await asyncio.sleep(random.random() * 0.2 * attempt)
        found = await pool.rows(
            "select headrace.set_aside($1, $2, $3, $4, $5, $6)", day, *until, limit, write=True, timeout=_LONG
        )
        answer = _number(found)
        if answer != _BUSY:
            break
    return answer


async def _thin_out(pool: Pool, day: date, until: _Horizons, limit: int) -> int:
    found = await pool.rows(
        "select headrace.prune_rows('everywhere', $1, $2, $3, $4, $5, headrace.batch_floor($6), headrace.batch_floor($7))",
        *until, limit, _end(day) - timedelta(days=1), _end(day),
        write=True, timeout=_LONG,
    )  # fmt: skip
    return _number(found)


async def _rows(pool: Pool, which: str, until: _Horizons, limit: int) -> int:
    found = await pool.rows(
        "select headrace.prune_rows($1, $2, $3, $4, $5, $6)", which, *until, limit, write=True, timeout=_LONG
    )
    return _number(found)


async def _rest(pool: Pool, limit: int, injected: datetime | None) -> None:
    await pool.rows("select headrace.prune_rest($1, $2)", limit, injected, write=True, timeout=_LONG)


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _number(found: list[Any]) -> int:
    number: int = found[0][0]
    return number
