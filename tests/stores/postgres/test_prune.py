"""Pruning: days are dropped whole; what must be kept moves; rows go one by one only in the default partition."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from conformance.kit import expire
from headrace.model.gate import Edge, NewGate, Wait, new_gate_id
from headrace.model.job import Batch, BatchId, Failure, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import DONE, Again, Ending, Finish
from headrace.model.records import Retention
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import claim, put, take, until_waiting

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
    assert (await pg.prune(KEEP)).jobs == 0
    assert await expire(pg, KEEP) == 3
    assert (await pg.stats()).queues[0].dead == 0


async def test_moved_rows_are_pruned_in_their_turn(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=5)
    await make_day(sql, old)
    [dead] = await finished(pg, sql, old, state=JobState.DEAD)
    assert (await pg.prune(KEEP)).jobs == 0
    assert await sql.fetchval("select count(*) from headrace.job_default") == 1
    await sql.execute("update headrace.ending set finished_at = clock_timestamp() - interval '15 days'")
    assert await expire(pg, KEEP) == 1
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
    """A user's long transaction has written jobs: no call waits for it, and the day is dropped next time."""
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

    assert (pruned.jobs, pruned.more) == (1, False)
    assert old not in await tables(sql)
    assert await expire(pg, keep) == 3
    assert await pg.get(gone) == [None] * 3
    assert [job and job.state for job in await pg.get(kept)] == [JobState.DEAD] * 2
    assert await expire(pg, keep) == 0
    assert await expire(pg, KEEP) == 2


async def test_dead_letters_may_go_before_their_day(pg: PostgresStore, sql: Any, today: date):
    day = today - timedelta(days=3)
    await make_day(sql, day)
    dead = await finished(pg, sql, day, state=JobState.DEAD, count=3)
    done = await finished(pg, sql, day)
    keep = Retention(done=timedelta(days=30), dead=timedelta(days=30), dead_by_queue={"default": timedelta(days=1)})
    assert await expire(pg, Retention(done=keep.done, dead=keep.dead)) == 0
    assert await expire(pg, keep) == 3
    assert day in await tables(sql)
    assert await pg.get(dead) == [None] * 3
    assert await pg.get(done) != [None]
    assert (await pg.stats()).queues[0].dead == 0


async def test_a_day_that_was_set_aside_is_dropped_by_the_next_call(pg: PostgresStore, sql: Any, today: date):
    """A pruner may end between the two steps: its jobs are gone already, the tables and the figures follow."""
    old = today - timedelta(days=20)
    await make_day(sql, old)
    done = await finished(pg, sql, old, count=4)
    dead = await finished(pg, sql, old, state=JobState.DEAD, count=2)
    past = await sql.fetchval("select clock_timestamp() - interval '14 days'")
    assert await sql.fetchval("select headrace.set_aside($1, $2, $2, '{}', '{}', 10)", old, past) == 0
    assert old not in await tables(sql)
    assert await pg.get([*done, *dead]) == [None] * 6
    assert (await pg.stats()).queues[0].dead == 2
    assert (await pg.prune(KEEP)).jobs == 6
    assert (await pg.stats()).queues[0].dead == 0
    assert await sql.fetchval("select count(*) from pg_class where relname like 'gone%'") == 0


async def test_members_of_a_gate_are_kept_when_their_day_is_dropped(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=5)
    await make_day(sql, old)
    others = await finished(pg, sql, old, count=3)
    gate, batch = NewGate(id=new_gate_id(), queue="default"), batch_of(old)
    jobs = [*[NewJob("t", b"x", Lane())] * 4, NewJob("t", b"x", Lane(), wait=Wait(gate.id))]
    await pg.enqueue(Batch(batch, jobs, (gate,), (Edge(job_id(batch, 1), job_id(batch, 3), gate.id),)))
    lease = await take(pg, 4)
    await pg.settle(lease.token, [(place, Finish(JobState.DONE)) for place in range(3)])
    await sql.execute(
        "update headrace.ending set finished_at = finished_at - interval '5 days' where batch = $1", batch
    )
    assert (await pg.prune(KEEP)).jobs == 3
    assert old not in await tables(sql)
    ids = [job_id(batch, place) for place in range(5)]
    # The first job is no member. It is the neighbour of members that ended in the same call, and goes with them.
    states = [JobState.DONE, JobState.DONE, JobState.DONE, JobState.RUNNING, JobState.BLOCKED]
    assert [job and job.state for job in await pg.get(ids)] == states
    assert await pg.get(others) == [None] * 3
    await pg.settle(lease.token, [(3, Finish(JobState.DONE))])
    await pg.promote()
    await sql.execute(
        "update headrace.gate set made_at = made_at - interval '5 days', changed_at = changed_at - interval '5 days'"
    )
    await pg.prune(KEEP)
    assert [job and job.state for job in await pg.get(ids)] == [None, None, None, JobState.DONE, JobState.READY]


async def test_a_job_that_is_retried_while_its_day_is_dropped(pg: PostgresStore, sql: Any, today: date):
    old = today - timedelta(days=5)
    await make_day(sql, old)
    ids = await finished(pg, sql, old, count=3)
    async with sql.transaction():
        await sql.fetch("select * from headrace.retry($1, true)", [ids[1]])
        await pg.prune(KEEP)
        assert old in await tables(sql)
    assert (await pg.prune(KEEP)).jobs == 2
    assert [job and job.state for job in await pg.get(ids)] == [None, JobState.READY, None]
    assert [job.id for job in (await take(pg)).jobs] == [ids[1]]


async def test_calls_go_on_while_a_day_that_was_set_aside_is_dropped(pg: PostgresStore, sql: Any, today: date):
    """A backup, or a long look, holds the tables of the day: only the pruner waits for it."""
    old = today - timedelta(days=5)
    await make_day(sql, old)
    await finished(pg, sql, old, count=3)
    horizon = datetime(today.year, today.month, today.day, tzinfo=UTC)
    assert await sql.fetchval("select headrace.set_aside($1, $2, $2, '{}', '{}', 10)", old, horizon) == 0
    async with sql.transaction():
        await sql.execute(f"lock table headrace.gone_job_{old:%Y%m%d} in access share mode")
        pruning = asyncio.create_task(pg.prune(KEEP))
        await until_waiting(sql, f"gone_job_{old:%Y%m%d}")
        await pg.enqueue(Batch(new_batch(), [NewJob("t", b"x", Lane())]))
        lease = await take(pg)
        assert await pg.settle(lease.token, [(0, DONE)]) == frozenset()
        assert not pruning.done()
    assert (await pruning).jobs == 3


async def test_rows_of_a_day_in_the_default_partition_are_found_without_a_lock(
    url: str, sql: Any, pg: PostgresStore, today: date
):
    day = today + timedelta(days=9)
    await pg.enqueue(Batch(batch_of(day), [NewJob("t", b"x", Lane())]))
    other = await asyncpg.connect(url)
    async with sql.transaction(), asyncio.timeout(60):
        await sql.execute("lock table headrace.job_default, headrace.job in access share mode")
        assert await other.fetchval("select headrace.make_partition($1, '1h')", day) is False
    await other.close()


async def test_a_large_default_partition_is_not_looked_through_under_the_lock(pg: PostgresStore, sql: Any, today: date):
    day = today + timedelta(days=2)
    await sql.execute(
        f"drop table headrace.job_{day:%Y%m%d}, headrace.ending_{day:%Y%m%d}, headrace.failure_{day:%Y%m%d}"
    )
    await sql.execute(
        "insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload)"
        " select headrace.batch_floor('2011-11-11'), 1, now(), n, 0, 'q', 't', convert_to(repeat(md5(n::text), 60), 'utf8')"
        " from generate_series(1, 13000) n"
    )
    assert await sql.fetchval("select headrace.guard_default($1)", day)
    for table in ("job", "ending", "failure"):
        await sql.execute(f"alter table headrace.{table}_default validate constraint not_{day:%Y%m%d}")
    scans = "select pg_stat_get_xact_numscans('headrace.job_default'::regclass)"
    async with sql.transaction():
        # The server counts the scans of earlier transactions, too, until it has written them to its statistics.
        before = await sql.fetchval(scans)
        assert await sql.fetchval("select headrace.make_partition($1)", day)
        assert await sql.fetchval(scans) == before
    assert await sql.fetchval("select count(*) from pg_constraint where conname like 'not@_%' escape '@'") == 0
    await sql.execute(
        f"drop table headrace.job_{day:%Y%m%d}, headrace.ending_{day:%Y%m%d}, headrace.failure_{day:%Y%m%d}"
    )
    await pg.prune(KEEP)
    assert day in await tables(sql)
    assert await sql.fetchval("select count(*) from pg_constraint where conname like 'not@_%' escape '@'") == 0


async def test_a_user_that_does_not_own_the_tables(url: str, pg: PostgresStore, sql: Any, today: date):
    """It prunes row by row, and doctor says why."""
    old = today - timedelta(days=5)
    await make_day(sql, old)
    done = await finished(pg, sql, old, count=3)
    role = f"plain_{secrets.token_hex(6)}"
    await sql.execute(
        f"create role {role} login password 'secret'; grant usage on schema headrace to {role};"
        f" grant all on all tables in schema headrace to {role}; grant all on all sequences in schema headrace to {role}"
    )
    parts = urlsplit(url)
    plain = PostgresStore(url.replace(f"{parts.username}:{parts.password}@", f"{role}:secret@"))
    await plain.open()
    await sql.execute(
        "drop table headrace.job_{0:%Y%m%d}, headrace.ending_{0:%Y%m%d}, headrace.failure_{0:%Y%m%d}".format(
            today + timedelta(days=2)
        )
    )
    assert (await plain.prune(KEEP)).jobs == 3
    assert await pg.get(done) == [None] * 3
    [finding] = [finding for finding in await plain.check() if finding.about == "owner"]
    assert finding.level == "warning"
    assert f"grant it {parts.username}" in finding.message
    await plain.close()
    assert "owner" in {finding.about for finding in await pg.check() if finding.level == "ok"}
    await sql.execute(f"drop owned by {role}; drop role {role}")


async def test_stops_of_jobs_that_are_gone(pg: PostgresStore, sql: Any):
    await sql.execute("insert into headrace.stop (batch, ord) values (gen_random_uuid(), 0)")
    [id] = await put(pg)
    await take(pg)
    await pg.cancel([id])
    await pg.prune(KEEP)
    assert [row["batch"] for row in await sql.fetch("select batch from headrace.stop")] == [headrace_batch(id)]


async def test_the_bytes_of_results_go_when_their_time_is_over(
    pg: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.store.postgres.verbs.prune._RESULTS", 3)
    lives = [timedelta(0)] * 4 + [timedelta(days=1), None]
    await pg.enqueue(Batch(new_batch(), [NewJob("t", b"x", Lane())] * len(lives)))
    lease = await take(pg)
    ends = [Finish(JobState.DONE, result=b"r" * 1000, result_ttl=life) for life in lives]
    await pg.settle(lease.token, list(enumerate(ends)))
    kept = "select sum(octet_length(result)) from headrace.ending"
    assert [(await pg.prune(KEEP)).more, await sql.fetchval(kept)] == [True, 3000]
    assert [(await pg.prune(KEEP)).more, await sql.fetchval(kept)] == [False, 2000]
    expired = [job.result_expired for job in await pg.get([job.id for job in lease.jobs]) if job is not None]
    assert expired == [True] * 4 + [False] * 2
