"""Neighbours that ended well are one row: every look finds each job in it, and a job that is taken out splits it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from headrace.model.job import Batch, BatchId, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import CancelAnswer, Filter, Retention
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs import ended
from stores.postgres.kit import blocked, put, take

Row = tuple[int, int | None]


async def ranges(sql: Any) -> list[Row]:
    """All rows of `ending`: the first job, and the last one if there are several."""
    return [
        (row["ord"], row["hi"]) for row in await sql.fetch("select ord, hi from headrace.ending order by batch, ord")
    ]


async def done(pg: PostgresStore, count: int) -> list[JobId]:
    """Jobs of one batch that ended well in one lease."""
    ids = await put(pg, count)
    lease = await take(pg, count)
    assert await pg.settle(lease.token, [(n, DONE) for n in range(count)]) == frozenset()
    return ids


async def states(pg: PostgresStore, ids: list[JobId]) -> list[JobState | None]:
    return [job and job.state for job in await pg.get(ids)]


# ── written ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "rows"),
    [
        (1, [(0, None)]),
        (2, [(0, 1)]),
        (32, [(0, 31)]),
        (33, [(0, 31), (32, None)]),
        (70, [(0, 31), (32, 63), (64, 69)]),
    ],
)
async def test_a_lease_that_went_well(pg: PostgresStore, sql: Any, count: int, rows: list[Row]):
    ids = await done(pg, count)
    assert await ranges(sql) == rows
    assert await states(pg, ids) == [JobState.DONE] * count
    [figures] = (await pg.stats()).queues
    assert (figures.running, figures.done_total) == (0, count)


async def test_lanes_of_one_batch_share_a_row(pg: PostgresStore, sql: Any):
    batch = Batch(new_batch(), [NewJob("t", b"", Lane(tenant="ab"[n % 2])) for n in range(10)])
    await pg.enqueue(batch)
    lease = await take(pg)
    assert len({job.tenant for job in lease.jobs}) == 2
    await pg.settle(lease.token, [(n, DONE) for n in range(10)])
    assert await ranges(sql) == [(0, 9)]


async def test_attempts_of_different_numbers_do_not_share_a_row(pg: PostgresStore, sql: Any):
    ids = await put(pg, 6)
    lease = await take(pg)
    await pg.settle(lease.token, [(n, Again(1, 0) if n == 2 else Again(0, 0)) for n in range(6)])
    lease = await take(pg)
    await pg.settle(lease.token, [(n, DONE) for n in range(6)])
    assert await ranges(sql) == [(0, 1), (2, None), (3, 5)]
    assert [job and (job.attempt, job.failures) for job in await pg.get(ids)] == [
        (2, 0), (2, 0), (2, 1), (2, 0), (2, 0), (2, 0),
    ]  # fmt: skip


async def test_batches_do_not_share_a_row(pg: PostgresStore, sql: Any):
    first, second = await put(pg, 3), await put(pg, 3)
    lease = await take(pg)
    await pg.settle(lease.token, [(n, DONE) for n in range(6)])
    assert await ranges(sql) == [(0, 2), (0, 2)]
    assert await states(pg, first + second) == [JobState.DONE] * 6


async def test_a_lease_that_is_settled_in_parts(pg: PostgresStore, sql: Any):
    ids = await put(pg, 12)
    lease = await take(pg)
    result = Finish(JobState.DONE, result=b"r")
    await pg.settle(lease.token, [(n, DONE) for n in (5, 3, 4, 9)])
    assert await ranges(sql) == [(3, 5), (9, None)]
    await pg.settle(lease.token, [(0, DONE), (1, result), (2, DONE), (6, Finish(JobState.DEAD)), (7, DONE), (8, DONE)])
    assert await ranges(sql) == [(0, None), (1, None), (2, None), (3, 5), (6, None), (7, 8), (9, None)]
    await pg.settle(lease.token, [(n, DONE) for n in range(12)])
    assert await ranges(sql) == [(0, None), (1, None), (2, None), (3, 5), (6, None), (7, 8), (9, None), (10, 11)]
    found = await pg.get(ids)
    assert [job and job.state for job in found] == [
        JobState.DEAD if n == 6 else JobState.DONE for n in range(12)
    ]  # fmt: skip
    assert [job and job.result for job in found] == [b"r" if n == 1 else None for n in range(12)]
    [figures] = (await pg.stats()).queues
    assert (figures.running, figures.done_total, figures.dead) == (0, 11, 1)


async def test_parts_end_at_blocks(pg: PostgresStore, sql: Any):
    await put(pg, 80)
    lease = await take(pg)
    await pg.settle(lease.token, [(n, DONE) for n in range(20, 70)])
    assert await ranges(sql) == [(20, 31), (32, 63), (64, 69)]


# ── read ────────────────────────────────────────────────────────────────────


async def test_every_job_of_a_range_tells_the_same_end(pg: PostgresStore, sql: Any):
    ids = await done(pg, 40)
    found = await pg.get(ids)
    assert len({(job.attempt, job.failures, job.claimed_at, job.finished_at) for job in found if job}) == 1
    for job in found:
        assert job is not None
        assert job.claimed_at is not None
        assert job.finished_at is not None
        assert job.claimed_at <= job.finished_at
    assert await sql.fetch("select state, count(*) from headrace.jobs group by state") == [("done", 40)]
    assert [row["id"] for row in await sql.fetch("select id from headrace.job($1)", ids[7])] == [ids[7]]
    assert await sql.fetchval("select state from headrace.state_now($1, 17)", batch_of(ids[0])) == "done"
    assert await pg.cancel([ids[5]]) == {ids[5]: CancelAnswer.FINISHED}
    assert await states(pg, ids) == [JobState.DONE] * 40


async def test_jobs_beside_a_range_have_not_ended(pg: PostgresStore):
    ids = await put(pg, 9)
    lease = await take(pg, 6)
    await pg.settle(lease.token, [(n, DONE) for n in (2, 3, 4)])
    expected = [JobState.RUNNING] * 2 + [JobState.DONE] * 3 + [JobState.RUNNING] + [JobState.READY] * 3
    assert await states(pg, ids) == expected
    found = (await pg.find(Filter(states=frozenset({JobState.DONE})))).jobs
    assert [job.id for job in found] == ids[4:1:-1]


@pytest.mark.parametrize("limit", [1, 7, 32, 100])
async def test_ranges_are_found_page_by_page(pg: PostgresStore, limit: int):
    ids = [*await done(pg, 75), *await done(pg, 20)]
    await pg.retry([ids[3], ids[40]])
    for wanted in (frozenset({JobState.DONE}), frozenset({JobState.DONE, JobState.DEAD}), frozenset[JobState]()):
        page = await pg.find(Filter(states=wanted), limit=limit)
        found = list(page.jobs)
        while page.next is not None:
            page = await pg.find(Filter(states=wanted), before=page.next, limit=limit)
            found += page.jobs
        kept = [id for n, id in enumerate(ids) if not wanted or n not in {3, 40}]
        assert [job.id for job in found] == kept[::-1]


@pytest.mark.parametrize(("many", "page"), [(1, 1), (2, 3), (5, 7), (5000, 500)])
async def test_ends_are_told_across_pages(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch, many: int, page: int):
    """Pages begin and end within ranges, also in one that was split."""
    monkeypatch.setattr(ended, "_SORTED", many)
    monkeypatch.setattr(ended, "_PAGE", page)
    begun = await pg.now()
    ids = [id for count in (40, 3, 1, 12) for id in await done(pg, count)]
    await pg.retry([ids[10]])
    await pg.delete([ids[45]])
    lease = await take(pg)
    await pg.settle(lease.token, [(0, Finish(JobState.DEAD))])
    found = await pg.ended(begun)
    assert sorted(each.id for each in found) == [id for n, id in enumerate(ids) if n != 45]
    assert found == sorted(found, key=lambda each: (each.at, each.id))
    assert [each.id for each in found if each.state is JobState.DEAD] == [ids[10]]
    for limit in (0, 1, 8, 41, 100):
        assert await pg.ended(begun, limit) == found[:limit]
    assert await pg.ended(found[20].at) == [each for each in found if each.at >= found[20].at]


async def test_ends_for_clients_of_an_earlier_version(pg: PostgresStore, sql: Any):
    begun = await pg.now()
    ids = await done(pg, 50) + await done(pg, 3)
    for limit in (1, 20, 51, 100):
        rows = await sql.fetch("select batch, ord from headrace.ended($1, $2)", begun, limit)
        assert [job_id(BatchId(row["batch"]), row["ord"]) for row in rows] == ids[:limit]


async def test_a_job_is_found_without_reading_its_batch(pg: PostgresStore, sql: Any):
    """Not even where the planner knows nothing of the table."""
    [id] = await put(pg)
    await sql.execute(
        "insert into headrace.job select j.batch, j.seq, j.enqueued_at, n, j.priority, j.queue, j.task, j.payload"
        " from headrace.job j, generate_series(1, 30000) n"
    )
    await sql.execute(
        "insert into headrace.ending (batch, finished_at, ord, attempt, state)"
        " select batch, now(), ord, 1, 1 from headrace.job where ord > 0"
    )
    for look in (
        "select * from headrace.jobs where batch = $1 and ord = 20000",
        "select * from headrace.ending_of($1, 20000)",
    ):
        [[plan]] = await sql.fetch(f"explain (analyze, buffers, format json) {look}".replace("$1", f"'{batch_of(id)}'"))
        assert '"Shared Hit Blocks"' in plan
        assert pages_read(plan) < 100


# ── split ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("at", "rows"),
    [(0, [(1, 9)]), (5, [(0, 4), (6, 9)]), (9, [(0, 8)]), (1, [(0, None), (2, 9)]), (8, [(0, 7), (9, None)])],
)
async def test_a_retry_splits_a_range(pg: PostgresStore, sql: Any, at: int, rows: list[Row]):
    ids = await done(pg, 10)
    before = await pg.get(ids)
    assert await pg.retry([ids[at]]) == frozenset({ids[at]})
    assert await ranges(sql) == rows
    found = await pg.get(ids)
    assert found[:at] + found[at + 1 :] == before[:at] + before[at + 1 :]
    assert await states(pg, [ids[at]]) == [JobState.READY]
    lease = await take(pg)
    assert [(job.ord, job.attempt) for job in lease.jobs] == [(at, 2)]
    await pg.settle(lease.token, [(0, DONE)])
    assert await ranges(sql) == sorted([*rows, (at, None)], key=lambda row: row[0])
    assert await states(pg, ids) == [JobState.DONE] * 10


@pytest.mark.parametrize("at", [0, 5, 9])
async def test_a_delete_splits_a_range(pg: PostgresStore, at: int):
    ids = await done(pg, 10)
    before = await pg.get(ids)
    assert await pg.delete([ids[at]], states={JobState.DEAD}) == frozenset()
    assert await pg.delete([ids[at]], states={JobState.DONE}) == frozenset({ids[at]})
    assert await pg.delete([ids[at]]) == frozenset()
    found = await pg.get(ids)
    assert found == [*before[:at], None, *before[at + 1 :]]


async def test_all_jobs_of_a_range_in_one_call(pg: PostgresStore, sql: Any):
    ids = await done(pg, 40)
    assert await pg.delete([ids[n] for n in (30, 31, 32, 5, 7)]) == frozenset(ids[n] for n in (5, 7, 30, 31, 32))
    assert await ranges(sql) == [(0, 4), (6, None), (8, 29), (33, 39)]
    assert await pg.retry(ids) == frozenset(ids) - {ids[n] for n in (5, 7, 30, 31, 32)}
    assert await ranges(sql) == []


@pytest.mark.parametrize(("held", "at"), [(3, 5), (5, 3), (0, 1), (9, 8), (4, 4)])
async def test_two_callers_split_one_range(pg: PostgresStore, sql: Any, held: int, at: int):
    """The second one waits for the row, which then no longer holds its job, and finds the row that does."""
    ids = await done(pg, 10)
    async with sql.transaction():
        assert await sql.fetchval("select count(*) from headrace.retry($1)", [ids[held]]) == 1
        second = asyncio.create_task(pg.delete([ids[at]]))
        await blocked(sql)
    assert await second == frozenset({ids[at]})
    expected = [JobState.DONE if n not in {held, at} else JobState.READY for n in range(10)]
    found = await states(pg, ids)
    assert found[at] is None
    assert found[:at] + found[at + 1 :] == expected[:at] + expected[at + 1 :]


# ── pruned ──────────────────────────────────────────────────────────────────


async def test_a_prune_ends_within_a_range(pg: PostgresStore, sql: Any):
    ids = await done(pg, 10)
    step = "select headrace.prune_rows('everywhere', clock_timestamp(), clock_timestamp(), '{}', '{}', $1)"
    assert await sql.fetchval(step, 4) == 4
    assert await ranges(sql) == [(4, 9)]
    assert await states(pg, ids) == [None] * 4 + [JobState.DONE] * 6
    assert await sql.fetchval(step, 5) == 5
    assert await ranges(sql) == [(9, None)]
    assert await sql.fetchval(step, 5) == 1
    assert await states(pg, ids) == [None] * 10


async def test_a_day_is_dropped_but_for_ranges_within_retention(pg: PostgresStore, sql: Any):
    today: date = await sql.fetchval("select (clock_timestamp() at time zone 'utc')::date")
    old = today - timedelta(days=5)
    assert await sql.fetchval("select headrace.make_partition($1)", old)
    noon = int(datetime(old.year, old.month, old.day, 12, tzinfo=UTC).timestamp() * 1000)
    made: list[list[JobId]] = []
    for _ in range(2):
        batch = BatchId(UUID(int=(noon << 80) | (new_batch().int & ((1 << 80) - 1))))
        await pg.enqueue(Batch(batch, [NewJob("t", b"", Lane()) for _ in range(40)]))
        lease = await take(pg)
        await pg.settle(lease.token, [(n, DONE) for n in range(40)])
        made.append([job_id(batch, ord) for ord in range(40)])
    gone, kept = made
    await sql.execute(
        "update headrace.ending set finished_at = now() - interval '5 days' where batch = $1", batch_of(gone[0])
    )
    [back] = await pg.retry([gone[20]])
    pruned = await pg.prune(Retention(done=timedelta(days=1), dead=timedelta(days=14)))
    assert pruned.jobs == 39
    assert await states(pg, gone) == [JobState.READY if id == back else None for id in gone]
    assert await states(pg, kept) == [JobState.DONE] * 40
    assert await sql.fetchval("select count(*) from headrace.ending_default") == 2
    assert await pg.retry([kept[7]]) == frozenset({kept[7]})


# ── rows of an earlier version ──────────────────────────────────────────────


async def test_rows_of_an_earlier_version_stay_readable(pg: PostgresStore, sql: Any, url: str):
    ids = await done(pg, 5)
    await sql.execute(
        "alter table headrace.ending drop column hi cascade; delete from headrace.migration where version = 21;"
        " insert into headrace.ending (batch, finished_at, ord, attempt, state, worker, claimed_at)"
        " select batch, finished_at, n, attempt, state, worker, claimed_at from headrace.ending, generate_series(1, 4) n"
    )
    begun = await sql.fetchval("select min(finished_at) from headrace.ending")
    store = PostgresStore(url)
    assert "0021_ended_ranges" in await store.migrate()
    await store.open()
    try:
        ids += await done(store, 3)
        assert await states(store, ids) == [JobState.DONE] * 8
        assert [each.id for each in await store.ended(begun)] == ids
        assert await store.retry(ids[2:4]) == frozenset(ids[2:4])
        assert await ranges(sql) == [(0, None), (1, None), (4, None), (0, 2)]
    finally:
        await store.close()


def batch_of(id: JobId) -> UUID:
    return UUID(int=id.int & ~0xFFFF)


def pages_read(plan: str) -> int:

    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
