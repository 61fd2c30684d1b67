"""Plain SQL: headrace.enqueue from any language, headrace.jobs for any onlooker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace.model.job import JobState, split_id
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Again, Finish
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.wakeup import CHANNEL
from stores.postgres.kit import WORKER, claim, put, take


async def test_enqueue_says_the_id_and_the_worker_gets_the_arguments(pg: PostgresStore, sql: Any):
    id = await sql.fetchval("""select headrace.enqueue('billing.charge', '[7, "acmé"]', '{"fast": true}')""")
    [job] = (await take(pg)).jobs
    assert job.id == id
    assert (job.task, job.queue, job.priority, job.tenant) == ("billing.charge", "default", 0, "")
    assert json.loads(job.payload) == {"args": [7, "acmé"], "kwargs": {"fast": True}}
    assert job.payload.startswith(b"{")


async def test_the_id_is_a_uuid7_of_now(sql: Any):
    id: UUID = await sql.fetchval("select headrace.enqueue('t')")
    assert (id.version, id.variant) == (7, "specified in RFC 4122")
    made = datetime.fromtimestamp((id.int >> 80) / 1000, UTC)
    assert abs(datetime.now(UTC) - made) < timedelta(minutes=5)
    assert split_id(id)[1] == 0


async def test_every_option(pg: PostgresStore, sql: Any):
    id = await sql.fetchval(
        "select headrace.enqueue('t', queue => 'slow', priority => 9, tenant => 'acme', delay => '5 minutes')"
    )
    [job] = await pg.get([id])
    assert job is not None
    assert (job.queue, job.priority, job.tenant, job.state) == ("slow", 9, "acme", JobState.SCHEDULED)
    assert job.run_at is not None
    assert job.run_at - job.enqueued_at == timedelta(minutes=5)
    later = datetime(2100, 1, 1, tzinfo=UTC)
    [job] = await pg.get([await sql.fetchval("select headrace.enqueue('t', run_at => $1)", later)])
    assert job is not None
    assert job.run_at == later


async def test_a_key_makes_one_job(sql: Any):
    first = await sql.fetchval("select headrace.enqueue('t', '[1]', key => 'k')")
    assert await sql.fetchval("select headrace.enqueue('t', '[1]', key => 'k')") == first
    with pytest.raises(asyncpg.UniqueViolationError, match="already made job"):
        await sql.fetchval("select headrace.enqueue('t', '[2]', key => 'k')")
    assert await sql.fetchval("select count(*) from headrace.jobs") == 1


async def test_it_comes_and_goes_with_the_transaction(pg: PostgresStore, sql: Any):
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("select headrace.enqueue('t')")
    assert await claim(pg) is None
    await transaction.rollback()
    assert await claim(pg) is None


async def test_a_trigger_may_enqueue(pg: PostgresStore, sql: Any):
    await sql.execute("""
        create table orders (id int primary key);
        create function on_order() returns trigger language plpgsql as $$ begin
            perform headrace.enqueue('order.placed', jsonb_build_array(new.id));
            return new;
        end $$;
        create trigger placed after insert on orders for each row execute function on_order();
        insert into orders select generate_series(1, 3);
    """)
    assert [json.loads(job.payload)["args"] for job in (await take(pg)).jobs] == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("headrace.enqueue('')", "is not a valid task name"),
        ("headrace.enqueue(null)", "is not a valid task name"),
        ("headrace.enqueue('a b')", "is not a valid task name"),
        ("headrace.enqueue('t', '{}')", "args must be a JSON array"),
        ("headrace.enqueue('t', null)", "args must be a JSON array"),
        ("headrace.enqueue('t', kwargs => '[]')", "kwargs must be a JSON object"),
        ("headrace.enqueue('t', queue => 'No')", "is not a valid queue name"),
        ("headrace.enqueue('t', tenant => 'a b')", "is not a valid tenant"),
        ("headrace.enqueue('t', priority => 1001)", "from -1000 to 1000"),
        ("headrace.enqueue('t', delay => '1s', run_at => now())", "not both"),
        ("headrace.enqueue('t', delay => '-1s')", "not before now"),
        ("headrace.enqueue('t', key => '')", "1 to 256"),
    ],
)
async def test_bad_input_is_refused(sql: Any, call: str, says: str):
    with pytest.raises(asyncpg.InvalidParameterValueError, match=says):
        await sql.fetchval(f"select {call}")
    assert await sql.fetchval("select count(*) from headrace.job") == 0


async def test_the_view_shows_every_state(pg: PostgresStore, sql: Any):
    ids = await put(pg, 6)
    lease = await take(pg, 5)
    await pg.settle(
        lease.token,
        [
            (0, DONE),
            (1, Finish(JobState.DEAD, note="max_attempts", failures=5)),
            (2, Finish(JobState.CANCELLED, note="enough")),
            (3, Again(1, 0, timedelta(hours=1))),
        ],
    )
    rows = await sql.fetch("select id, state, attempt, failures, note from headrace.jobs order by id")
    assert [tuple(row) for row in rows] == [
        (ids[0], "done", 1, 0, None),
        (ids[1], "dead", 1, 5, "max_attempts"),
        (ids[2], "cancelled", 1, 0, "enough"),
        (ids[3], "scheduled", 1, 1, None),
        (ids[4], "running", 1, 0, None),
        (ids[5], "ready", 0, 0, None),
    ]
    one = await sql.fetchrow("select * from headrace.job($1)", ids[4])
    assert (one["state"], one["worker"], one["args"]) == ("running", WORKER, b"{}")
    assert one["claimed_at"] is not None
    assert await sql.fetchrow("select * from headrace.job($1)", new_token()) is None


async def test_a_commit_wakes_the_workers_of_the_queue(pg: PostgresStore, sql: Any):
    heard = await heard_of(sql)
    async with sql.transaction():
        await sql.fetch("select headrace.enqueue('t', queue => 'slow'), headrace.enqueue('t', queue => 'slow')")
        await sql.fetch("select headrace.enqueue('t', queue => 'later', delay => '1 hour')")
        await sql.fetch("select 1")
        assert heard == []
    await sql.fetch("select 1")
    assert heard == ["slow"]


async def test_a_rollback_wakes_no_worker(sql: Any):
    heard = await heard_of(sql)
    transaction = sql.transaction()
    await transaction.start()
    await sql.fetch("select headrace.enqueue('t')")
    await transaction.rollback()
    # A key that made its job before brings no new one.
    await sql.fetch("select headrace.enqueue('t', queue => 'k', key => 'k')")
    await sql.fetch("select headrace.enqueue('t', queue => 'k', key => 'k')")
    await sql.fetch("select 1")
    assert heard == ["k"]


async def heard_of(sql: Any) -> list[str]:
    """What the store's channel says from now on; a session hears its own notices right after its commits."""
    heard: list[str] = []

    def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
        heard.append(payload)

    await sql.add_listener(CHANNEL, hear)
    return heard
