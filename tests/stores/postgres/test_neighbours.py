"""Neighbours in one range: a call that waits for a range finds its job wherever the other transaction leaves it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from headrace.model.job import Batch, JobState, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import CancelAnswer
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import blocked, deadlocks

LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})
HOUR = timedelta(hours=1)


def unique(*names: str, replace: bool = False, due: timedelta | None = None) -> Batch:
    return Batch(
        new_batch(), [NewJob("t", b"", Lane(), due, unique=UniqueLock(name, LIVE, replace=replace)) for name in names]
    )


@pytest.mark.parametrize("verb", ["delete", "cancel", "replace"])
async def test_a_job_in_the_new_half_of_a_split_range_is_found(pg: PostgresStore, sql: Any, verb: str):
    first = unique(*"abcdefgh")
    await pg.enqueue(first)
    made = [job_id(first.id, ord) for ord in range(8)]
    async with asyncio.timeout(60):
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetch("select * from headrace.cancel($1, 'out')", [made[3]])
        call = asyncio.create_task(
            pg.enqueue(unique("b", replace=True)) if verb == "replace" else getattr(pg, verb)([made[1]])
        )
        await blocked(sql)
        await transaction.commit()
        answer = await call
    if verb == "delete":
        assert answer == {made[1]}
    elif verb == "cancel":
        assert answer == {made[1]: CancelAnswer.CANCELLED}
    else:
        [found] = await pg.get([made[1]])
        assert found is not None
        assert found.state is JobState.CANCELLED


async def test_a_scheduled_job_in_the_new_half_of_a_split_range_is_found(pg: PostgresStore, sql: Any):
    first = unique(*"abcdefgh", due=HOUR)
    await pg.enqueue(first)
    made = [job_id(first.id, ord) for ord in range(8)]
    async with asyncio.timeout(60):
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetch("select * from headrace.cancel($1, 'out')", [made[3]])
        call = asyncio.create_task(pg.retry([made[1]]))
        await blocked(sql)
        await transaction.commit()
        assert await call == {made[1]}


async def test_a_job_that_is_promoted_meanwhile_is_found(pg: PostgresStore, sql: Any):
    """It leaves one table after the look at the other."""
    first = unique("a", due=HOUR)
    await pg.enqueue(first)
    made = job_id(first.id, 0)
    async with asyncio.timeout(60):
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetch("select * from headrace.retry($1)", [made])
        call = asyncio.create_task(pg.delete([made]))
        await blocked(sql)
        await transaction.commit()
        assert await call == {made}


async def test_calls_that_replace_jobs_of_one_range_do_not_wait_crosswise(pg: PostgresStore, sql: Any, url: str):
    """One holds the range and wants the lock of the other, which holds that lock and wants the range."""
    await pg.enqueue(unique("a", "b", "z"))
    before = await deadlocks(sql)
    other = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(60):
            transaction = sql.transaction()
            await transaction.start()
            # The range is held until the call of both locks has its first one, and the call of one lock waits, too.
            await sql.fetch("select from headrace.ready for update")
            one = asyncio.create_task(pg.enqueue(unique("a", "b", replace=True)))
            await blocked(other)
            two = asyncio.create_task(pg.enqueue(unique("b", replace=True)))
            await blocked(other, 2)
            await transaction.commit()
            await asyncio.gather(one, two)
    finally:
        await other.close()
    assert await deadlocks(sql) == before
    assert await sql.fetchval("select sum(hi - lo + 1) from headrace.ready") == 3


async def test_a_lock_that_is_pruned_meanwhile_is_made_anew(pg: PostgresStore, sql: Any, url: str):
    await pg.enqueue(unique("a", "b"))
    pruner = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(60):
            transaction = sql.transaction()
            await transaction.start()
            await sql.fetch("select from headrace.unique_lock where name = 'a' for update")
            call = asyncio.create_task(pg.enqueue(unique("a", "b", replace=True)))
            await blocked(pruner)
            await pruner.execute("delete from headrace.unique_lock where name = 'b'")
            await transaction.commit()
            await call
    finally:
        await pruner.close()
    assert await sql.fetchval("select count(*) from headrace.unique_lock") == 2
