"""Pruning: whole days of history dropped as partitions; rows one by one only where that cannot be."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from headrace.store.contract import Progress, Pruned, Retention
from headrace.store.postgres import migrations
from headrace.store.postgres.pool import Pool

_LONG = 600.0


async def prune(
    pool: Pool, keep: Retention, limit: int, injected: datetime | None, progress: Progress | None
) -> Pruned:
    """One bounded step: at most one day dropped, at most `limit` rows deleted."""
    now: datetime = injected or (await pool.rows("select clock_timestamp()", write=False))[0][0]
    done, dead = now - keep.done, now - keep.dead
    jobs, more = 0, False
    if injected is None:
        await pool.run(_make_partitions, write=True)
        days: list[date] = [row[0] for row in await pool.rows("select headrace.partition_days()", write=False)]
        old = [day for day in days if _end(day) <= done]
        if progress is not None and old:
            progress(0, len(old), "days")
        if old:
            dropped = await _drop_day(pool, old[0], done, dead, limit)
            if dropped is None:
                dropped = await _thin_out(pool, old[0], done, dead, limit)
                more = dropped >= limit
            jobs += dropped
            more = more or len(old) > 1
        if progress is not None and old:
            progress(1, len(old), "days")
    deleted = await _rows(pool, done, dead, limit, everywhere=injected is not None)
    await pool.rows("select headrace.prune_rest($1, $2)", limit, injected, write=True, timeout=_LONG)
    if injected is not None:
        more = bool(await pool.rows(_LEFT, done, dead, write=False))
    return Pruned(jobs + deleted, more=more or (injected is None and deleted >= limit))


_LEFT = """select 1 from headrace.ending e where e.finished_at <= case when e.state = 2 then $2::timestamptz else $1::timestamptz end limit 1"""


async def _make_partitions(connection: Any) -> None:
    await migrations.make_partitions(connection)


async def _drop_day(pool: Pool, day: date, done: datetime, dead: datetime, limit: int) -> int | None:
    found = await pool.rows(
        "select headrace.prune_day($1, $2, $3, $4)", day, done, dead, limit, write=True, timeout=_LONG
    )
    dropped: int | None = found[0][0]
    return dropped


async def _thin_out(pool: Pool, day: date, done: datetime, dead: datetime, limit: int) -> int:
    found = await pool.rows(
        "select headrace.prune_rows($1, $2, $3, true, headrace.batch_floor($4), headrace.batch_floor($5))",
        done, dead, limit, _end(day) - timedelta(days=1), _end(day),
        write=True, timeout=_LONG,
    )  # fmt: skip
    return _number(found)


async def _rows(pool: Pool, done: datetime, dead: datetime, limit: int, *, everywhere: bool) -> int:
    found = await pool.rows(
        "select headrace.prune_rows($1, $2, $3, $4)", done, dead, limit, everywhere, write=True, timeout=_LONG
    )
    return _number(found)


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time(), UTC)


def _number(found: list[Any]) -> int:
    number: int = found[0][0]
    return number
