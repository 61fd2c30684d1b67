"""Pruning: days are dropped whole; what must be kept moves; rows go one by one only in the default partition."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace.job import Batch, BatchId, Failure, JobId, JobState, NewJob, job_id, new_batch
from headrace.lane import Lane
from headrace.outcome import DONE, Again, Ending, Finish
from headrace.store.postgres.store import PostgresStore
from headrace.store.terms import Retention
from stores.postgres.kit import claim, take

KEEP = Retention(done=timedelta(days=1), dead=timedelta(days=14))


@pytest.fixture
async def today(sql: Any) -> date:
    """By the database; midnight may come at any time, and its partitions are there for the days after, too."""
    return await now(sql)


async def now(sql: Any) -> date:
    found: date = await sql.fetchval("select (clock_timestamp() at time zone 'utc')::date")
    return found


def batch_of(day: date) -> BatchId:
    """A batch id as a client would have made it on that day."""
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp() * 1000)
    return BatchId(UUID(int=(noon << 80) | (new_batch().int & ((1 << 80) - 1))))


async def tables(sql: Any) -> list[date]:
    found = await sql.fetch("select headrace.partition_days() as day")
    return [row["day"] for row in found]


async def finished(
    pg: PostgresStore, sql: Any, day: date, *, state: Ending = JobState.DONE, count: int = 1
) -> list[JobId]:
    """Jobs enqueued and finished on that day."""
    batch = Batch(batch_of(day), [NewJob("t", b"x", Lane()) for _ in range(count)])
    await pg.enqueue(batch)
    lease = await take(pg, count)
    failure = Failure(1, "ValueError", "no", "tb", datetime.now(UTC)) if state is JobState.DEAD else None
    await pg.settle(lease.token, [(n, Finish(state, failure=failure)) for n in range(count)])
    await sql.execute(
        "update headrace.ending set finished_at = $2 where batch = $1",
        batch.id,
        datetime(day.year, day.month, day.day, 13, tzinfo=UTC),
    )
    return [job_id(batch.id, n) for n in range(count)]


async def make_day(sql: Any, day: date) -> None:
    assert await sql.fetchval("select headrace.make_partition($1)", day)


def ahead(day: date) -> list[date]:
    return [day + timedelta(days=n) for n in range(3)]


async def test_partitions_are_made_ahead(pg: PostgresStore, sql: Any):
    migrated = await tables(sql)
    assert migrated == ahead(migrated[0])
    # It was migrated for another test, perhaps before midnight.
    assert await now(sql) - migrated[0] <= timedelta(days=1)
    await sql.execute(
        "drop table headrace.job_{0:%Y%m%d}, headrace.ending_{0:%Y%m%d}, headrace.failure_{0:%Y%m%d}".format(
            migrated[2]
        )
    )
    before = await now(sql)
    await pg.prune(KEEP)
    found = [day for day in await tables(sql) if day >= before]
    assert found in (ahead(before), ahead(await now(sql)), [before, *ahead(await now(sql))])


async def test_todays_jobs_lie_in_todays_partition(pg: PostgresStore, sql: Any, today: date):
    await finished(pg, sql, today)
    assert await sql.fetchval(f"select count(*) from headrace.job_{today:%Y%m%d}") == 1
    assert await sql.fetchval("select count(*) from headrace.job_default") == 0


async def test_an_old_day_is_dropped_whole_but_for_what_must_be_kept(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=5)
    await make_day(sql, old)
    done = await finished(pg, sql, old, count=4)
    dead = await finished(pg, sql, old, state=JobState.DEAD)
    late = await finished(pg, sql, old)
    await sql.execute(
        "update headrace.ending set finished_at = clock_timestamp() where batch = $1", headrace_batch(late[0])
    )
    waiting = Batch(batch_of(old), [NewJob("t", b"w", Lane()), NewJob("t", b"later", Lane("q2"), timedelta(days=1))])
    running = Batch(batch_of(old), [NewJob("t", b"r", Lane("q3"))])
    await pg.enqueue(waiting)
    await pg.enqueue(running)
    lease = await claim(pg, queue="q3")
    assert lease is not None
    before = await pg.stats()

    pruned = await pg.prune(KEEP)

    assert (pruned.jobs, pruned.more) == (4, False)
    assert old not in await tables(sql)
    assert await pg.get(done) == [None] * 4
    kept = [*dead, *late, job_id(waiting.id, 0), job_id(waiting.id, 1), job_id(running.id, 0)]
    found = [job for job in await pg.get(kept) if job]
    assert [job.state for job in found] == [
        JobState.DEAD, JobState.DONE, JobState.READY, JobState.SCHEDULED, JobState.RUNNING,
    ]  # fmt: skip
    assert [f.kind for f in found[0].history] == ["ValueError"]
    assert [(q.ready, q.dead) for q in (await pg.stats()).queues] == [(q.ready, q.dead) for q in before.queues]
    # What was moved lives on as before.
    assert await pg.settle(lease.token, [(0, Again(0, 0))]) == frozenset()
    assert [job.payload for job in (await take(pg)).jobs] == [b"w"]
    assert [job.payload for job in lease.jobs] == [b"r"]


def headrace_batch(id: JobId) -> UUID:
    return UUID(int=id.int & ~0xFFFF)


async def test_dead_letters_past_their_time_are_counted_out(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=20)
    await make_day(sql, old)
    await finished(pg, sql, old, state=JobState.DEAD, count=3)
    assert (await pg.stats()).queues[0].dead == 3
    assert (await pg.prune(KEEP)).jobs == 3
    assert (await pg.stats()).queues[0].dead == 0


async def test_moved_rows_are_pruned_in_their_turn(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=5)
    await make_day(sql, old)
    [dead] = await finished(pg, sql, old, state=JobState.DEAD)
    assert (await pg.prune(KEEP)).jobs == 0
    assert await sql.fetchval("select count(*) from headrace.job_default") == 1
    await sql.execute("update headrace.ending set finished_at = clock_timestamp() - interval '15 days'")
    assert (await pg.prune(KEEP)).jobs == 1
    assert await pg.get([dead]) == [None]
    assert await sql.fetchval("select count(*) from headrace.failure") == 0


async def test_a_day_with_too_much_to_keep_is_thinned_out(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=5)
    await make_day(sql, old)
    done = await finished(pg, sql, old, count=5)
    dead = await finished(pg, sql, old, state=JobState.DEAD, count=4)
    first = await pg.prune(KEEP, limit=3)
    assert (first.jobs, first.more) == (3, True)
    second = await pg.prune(KEEP, limit=3)
    assert (second.jobs, second.more) == (2, False)
    assert await pg.get(done) == [None] * 5
    assert all(await pg.get(dead))
    assert old in await tables(sql)


async def test_several_old_days_are_dropped_call_by_call(pg: PostgresStore, sql: Any, today: date):
    for ago in (3, 4, 5):
        await make_day(sql, today - timedelta(days=ago))
        await finished(pg, sql, today - timedelta(days=ago), count=2)
    answers = [await pg.prune(KEEP) for _ in range(3)]
    assert [(answer.jobs, answer.more) for answer in answers] == [(2, True), (2, True), (2, False)]


async def test_a_busy_table_is_left_for_later(pg: PostgresStore, sql: Any, today: date):
    """Somebody's long transaction has written jobs: nobody waits for it, the day goes next time."""
    old = today - timedelta(days=5)
    await make_day(sql, old)
    done = await finished(pg, sql, old)
    async with sql.transaction():
        await sql.execute("select headrace.enqueue('t')")
        await pg.prune(KEEP)
        assert old in await tables(sql)
    await pg.prune(KEEP)
    assert old not in await tables(sql)
    assert await pg.get(done) == [None]


async def test_a_client_with_a_wrong_clock_does_no_harm(pg: PostgresStore, sql: Any):
    for day in (date(1999, 1, 1), date(2199, 1, 1)):
        batch = Batch(batch_of(day), [NewJob("t", b"x", Lane())])
        await pg.enqueue(batch)
        lease = await take(pg)
        assert await pg.settle(lease.token, [(0, DONE)]) == frozenset()
    assert await sql.fetchval("select count(*) from headrace.job_default") == 2
    await sql.execute("update headrace.ending set finished_at = clock_timestamp() - interval '2 days'")
    assert (await pg.prune(KEEP)).jobs == 2


async def test_a_day_is_dropped_but_for_dead_letters_of_queues_that_keep_them(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=20)
    await make_day(sql, old)
    kept = await finished(pg, sql, old, state=JobState.DEAD, count=2)
    await sql.execute("update headrace.job set queue = 'long' where batch = $1", headrace_batch(kept[0]))
    gone = await finished(pg, sql, old, state=JobState.DEAD, count=3)
    await finished(pg, sql, old)
    keep = Retention(done=KEEP.done, dead=KEEP.dead, dead_by_queue={"long": timedelta(days=40)})

    pruned = await pg.prune(keep)

    assert (pruned.jobs, pruned.more) == (4, False)
    assert old not in await tables(sql)
    assert await pg.get(gone) == [None] * 3
    assert [job and job.state for job in await pg.get(kept)] == [JobState.DEAD] * 2
    assert (await pg.prune(keep)).jobs == 0
    assert (await pg.prune(KEEP)).jobs == 2


async def test_dead_letters_may_go_before_their_day(pg: PostgresStore, sql: Any, today: date):
    day = today - timedelta(days=3)
    await make_day(sql, day)
    dead = await finished(pg, sql, day, state=JobState.DEAD, count=3)
    done = await finished(pg, sql, day)
    keep = Retention(done=timedelta(days=30), dead=timedelta(days=30), dead_by_queue={"default": timedelta(days=1)})
    assert (await pg.prune(Retention(done=keep.done, dead=keep.dead))).jobs == 0
    assert (await pg.prune(keep)).jobs == 3
    assert day in await tables(sql)
    assert await pg.get(dead) == [None] * 3
    assert await pg.get(done) != [None]
    assert (await pg.stats()).queues[0].dead == 0
