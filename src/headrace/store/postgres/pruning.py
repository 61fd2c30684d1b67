"""Pruning: whole days of history dropped as partitions; rows one by one only where that cannot be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Self

from headrace.model.job import JobId, job_id
from headrace.model.records import Progress, Pruned, Retention
from headrace.store.postgres import migrations
from headrace.store.postgres.pool import Pool

_LONG = 600.0
_TOO_MUCH, _BUSY = 1, 2
"""Answers of set_aside that are not 0."""
_TRIES = 5
"""How often a call asks for locks that it waits for only for a moment each."""
_RESULTS = 1000
"""Results whose bytes go in one call."""
_NAMED = timedelta(days=60)
"""The names of workers that were there are kept for at least so long."""
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
    def of_dead(self) -> tuple[datetime, list[str], list[datetime]]:
        """As `dead_until` takes them."""
        return self.dead, self.queues, self.kept

    def __iter__(self) -> Iterator[datetime | list[str] | list[datetime]]:
        """As the functions that drop take them: they keep every dead letter, whenever it ended."""
        return iter((self.done, _NEVER, list[str](), list[datetime]()))


async def prune(
    pool: Pool, keep: Retention, limit: int, injected: datetime | None, progress: Progress | None
) -> Pruned:
    """One bounded step: at most one day dropped, at most `limit` rows deleted of each kind."""
    now: datetime = injected or (await pool.rows("select clock_timestamp()", write=False))[0][0]
    until = _Horizons.of(keep, now)
    await _names(pool, keep, now)
    if injected is not None:
        deleted = await _rows(pool, "everywhere", until, limit)
        await _rest(pool, limit, injected)
        results = await _results(pool, injected)
        return Pruned(deleted, more=results or bool(await pool.rows(_LEFT, until.done, write=False)))
    await pool.run(migrations.make_partitions, write=True)
    jobs, more = await _old_days(pool, until, limit, progress)
    deleted = await _rows(pool, "default", until, limit)
    await _rest(pool, limit, None)
    results = await _results(pool, None)
    return Pruned(jobs + deleted, more or deleted >= limit or results)


_LEFT = "select 1 from headrace.ending e where e.finished_at <= $1 and e.state <> 2 limit 1"


async def expired_dead(pool: Pool, keep: Retention, limit: int, injected: datetime | None) -> list[JobId]:
    """Dead letters past retention. Those older than the kept days lie in the default partition, by the time of their end."""
    now: datetime = injected or (await pool.rows("select clock_timestamp()", write=False))[0][0]
    until = _Horizons.of(keep, now)
    found = await pool.rows(_EXPIRED.format("ending_default"), *until.of_dead, limit, write=False, timeout=_LONG)
    if len(found) < limit and (injected is not None or until.dead_first):
        found = await pool.rows(_EXPIRED.format("ending"), *until.of_dead, limit, write=False, timeout=_LONG)
    return [job_id(batch, ord) for batch, ord in found]


# Both conditions on the state: the first is that of the index of what was not done.
_EXPIRED = """select e.batch, e.ord from headrace.{} e
where e.state <> 1 and e.state = 2 and e.finished_at <= greatest($1::timestamptz, (select max(k) from unnest($3::timestamptz[]) k))
    and e.finished_at <= headrace.dead_until(e.batch, e.ord, $1, $2, $3)
limit $4"""


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


async def _results(pool: Pool, injected: datetime | None) -> bool:
    """Drop the bytes of results whose time to live is over; whether there may be more."""
    found = await pool.rows("select headrace.prune_results($1, $2)", _RESULTS, injected, write=True, timeout=_LONG)
    return _number(found) >= _RESULTS


async def _names(pool: Pool, keep: Retention, now: datetime) -> None:
    """Forget the names of workers that have been gone for so long that hardly a job they ended is kept."""
    until = now - max(_NAMED, 2 * keep.dead)
    await pool.rows(
        "delete from headrace.runner r where r.at < $1 and not exists (select from headrace.worker w where w.id = r.id)",
        until,
        write=True,
    )


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _number(found: list[Any]) -> int:
    number: int = found[0][0]
    return number
