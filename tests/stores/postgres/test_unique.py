"""Unique locks on PostgreSQL: inside a user's transaction, and between two of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from headrace.model.job import Batch, JobState, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import DONE
from headrace.model.records import Retention
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import take

LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})


def one(*, replace: bool = False, name: str = "u", due: timedelta | None = None) -> Batch:
    return Batch(new_batch(), [NewJob("t", b"", Lane(), due, unique=UniqueLock(name, LIVE, replace=replace))])


async def test_a_lock_taken_in_a_transaction_is_decided_by_its_end(pg: PostgresStore, url: str):
    for commit in (False, True):
        connection = await asyncpg.connect(url)
        transaction = connection.transaction()
        await transaction.start()
        mine, theirs = one(name=f"u{commit}"), one(name=f"u{commit}")
        assert (await pg.aenqueue_in(connection, mine)).existing == {}
        # Another name does not wait.
        await pg.enqueue(one(name=f"v{commit}"))
        waiting = asyncio.create_task(pg.enqueue(theirs))
        await pg.now()
        assert not waiting.done()
        await (transaction.commit() if commit else transaction.rollback())
        await connection.close()
        assert (await waiting).existing == ({0: job_id(mine.id, 0)} if commit else {})


async def test_replace_in_a_transaction_that_is_rolled_back(pg: PostgresStore, url: str):
    first = one()
    await pg.enqueue(first)
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await pg.aenqueue_in(connection, one(replace=True))
    await transaction.rollback()
    await connection.close()
    lease = await take(pg)
    assert [job.batch for job in lease.jobs] == [first.id]


async def test_many_names_crosswise_do_not_wait_for_each_other_in_circles(pg: PostgresStore):
    names = [f"n{n}" for n in range(20)]

    def some(order: list[str]) -> Batch:
        locks = [UniqueLock(name, LIVE) for name in order]
        return Batch(new_batch(), [NewJob("t", b"", Lane(), unique=lock) for lock in locks])

    for _ in range(10):
        batches = [some(names), some(names[::-1]), some(names[::2] + names[1::2])]
        async with asyncio.timeout(100):
            answers = await asyncio.gather(*[pg.enqueue(batch) for batch in batches])
        assert sum(len(answer.existing) for answer in answers) == 40
        lease = await take(pg)
        assert len(lease.jobs) == 20
        await pg.settle(lease.token, [(at, DONE) for at in range(20)])


async def test_prune_drops_what_batches_that_are_gone_did_not_store(pg: PostgresStore, sql: Any):
    await pg.enqueue(one(name="lock"))
    gone, kept = [Batch(new_batch(), [*one(name="lock").jobs, *one(name=name).jobs]) for name in ("a", "b")]
    for batch in (gone, kept):
        await pg.enqueue(batch)
    await pg.delete([job_id(gone.id, 1)])
    # As if both were of last week.
    await sql.execute(
        "update headrace.refused set batch = headrace.batch_floor(clock_timestamp() - interval '7 days') where batch = $1",
        gone.id,
    )
    await pg.prune(Retention())
    assert [row[0] for row in await sql.fetch("select batch from headrace.refused")] == [kept.id]


async def test_prune_drops_locks_of_jobs_that_are_gone(pg: PostgresStore, sql: Any):
    gone, kept = one(name="gone"), one(name="kept")
    for batch in (gone, kept):
        await pg.enqueue(batch)
    await pg.delete([job_id(gone.id, 0)])
    # As if it were of last week.
    old = "select headrace.batch_floor(clock_timestamp() - interval '7 days')"
    await sql.execute(f"update headrace.unique_lock set batch = ({old}) where name = 'gone'")
    await pg.prune(Retention())
    assert [row[0] for row in await sql.fetch("select name from headrace.unique_lock")] == ["kept"]
