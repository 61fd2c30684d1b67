"""Looks are bounded: a call looks at so many jobs and says where to go on; nothing is left out or shown twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.lane import Lane
from headrace.outcome import DONE, Again, Finish
from headrace.store.postgres.store import PostgresStore
from headrace.store.terms import Filter, Page
from stores.postgres.kit import claim

MANY = 1200


async def enqueue(pg: PostgresStore, task: str, count: int = 1, *, due: timedelta | None = None) -> list[JobId]:
    batch = Batch(new_batch(), [NewJob(task, b"", Lane(queue=task), due) for _ in range(count)])
    await pg.enqueue(batch)
    return [job_id(batch.id, ord) for ord in range(count)]


async def pages(pg: PostgresStore, where: Filter, limit: int = 50) -> list[Page]:
    found = [await pg.find(where, limit=limit)]
    while found[-1].next is not None:
        found.append(await pg.find(where, before=found[-1].next, limit=limit))
    return found


async def end(pg: PostgresStore, task: str, state: JobState) -> None:
    while lease := await claim(pg, 500, task):
        settled = DONE if state is JobState.DONE else Finish(JobState.DEAD)
        await pg.settle(lease.token, [(n, settled) for n in range(len(lease.jobs))])


@pytest.mark.parametrize("state", [*JobState, None])
async def test_a_needle_behind_many(pg: PostgresStore, state: JobState | None):
    """It is the oldest and the only one of its task; the first page ends before it, and says so."""
    due = timedelta(hours=1) if state is JobState.SCHEDULED else None
    [first] = await enqueue(pg, "needle", due=due)
    await enqueue(pg, "hay", MANY, due=due)
    [last] = await enqueue(pg, "needle", due=due)
    for task in ("needle", "hay"):
        if state is JobState.DONE or state is JobState.DEAD:
            await end(pg, task, state)
        elif state is JobState.RUNNING:
            while await claim(pg, 500, task):
                pass
        elif state is JobState.CANCELLED:
            ids = [job.id for page in await pages(pg, Filter(task=task), 1000) for job in page.jobs]
            await pg.cancel(ids)
    where = Filter(task="needle", states=frozenset({state}) if state else frozenset())
    found = await pages(pg, where)
    assert [job.id for page in found for job in page.jobs] == [last, first]
    assert [job.id for job in found[0].jobs] == [last]
    assert found[0].next is not None


async def test_pages_of_everything_are_complete(pg: PostgresStore):
    """Kinds of very different number, in pages of any size: each job once, in order."""
    await enqueue(pg, "done", 700)
    await end(pg, "done", JobState.DONE)
    await enqueue(pg, "ready", 900)
    await enqueue(pg, "dead", 5)
    await end(pg, "dead", JobState.DEAD)
    await enqueue(pg, "running", 300)
    lease = await claim(pg, 200, "running")
    assert lease is not None
    await pg.settle(lease.token, [(7, Again(1, 0)), (8, DONE)])
    for states in (frozenset[JobState](), frozenset(JobState), frozenset(list(JobState)[1:])):
        for limit in (97, 1999):
            found = [job for page in await pages(pg, Filter(states=states), limit) for job in page.jobs]
            assert [job.id for job in found] == sorted({job.id for job in found}, reverse=True)
            assert {job.state for job in found} <= (states or set(JobState))
            assert len(found) == 1905


async def test_a_long_line_is_walked_by_the_log(pg: PostgresStore, sql: Any):
    """What waits is not kept in the order of ids: where that is very much, only the log has an order to go by."""
    [first] = await enqueue(pg, "needle")
    await sql.execute(
        "with made as (insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload)"
        " select headrace.new_batch(), n, now(), 0, 0, 'hay', 'hay', '' from generate_series(1, 30000) n returning *)"
        " insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant)"
        " select seq, 0, batch, 0, 0, 0, 0, 0, 0, false, 'hay', '' from made"
    )
    [last] = await enqueue(pg, "needle")
    page = await pg.find(Filter(states=frozenset({JobState.READY})), limit=3)
    assert page.jobs[0].id == last
    assert len(page.jobs) == 3
    page = await pg.find(Filter(task="needle", states=frozenset({JobState.READY})))
    assert [job.id for job in page.jobs] == [last]
    assert page.next is not None
    page = await pg.find(Filter(states=frozenset({JobState.READY})), before=first)
    assert page == Page([], None)


async def test_endings_of_a_busy_time_are_told_in_order(pg: PostgresStore, sql: Any):
    """More of them than are sorted at once, unevenly in time."""
    await sql.execute(
        "with made as (insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload)"
        " select headrace.batch_floor(now() - interval '3 hours' + n * interval '1 ms'), n, now(), 0, 0, 'q', 't', ''"
        " from generate_series(1, 120000) n returning *)"
        " insert into headrace.ending (batch, finished_at, ord, attempt, state)"
        " select batch, now() - case when seq <= 110000 then interval '1 hour' - seq * interval '3 us'"
        " else interval '1 minute' * (1 + seq % 50) end, 0, 1, 1 from made"
    )
    since = await sql.fetchval("select now() - interval '2 hours'")
    expected = await sql.fetch("select batch from headrace.ending order by finished_at, batch")
    for limit in (10, 3000, 115000):
        found = await pg.ended(since, limit)
        assert [ending.id for ending in found] == [job_id(row["batch"], 0) for row in expected[:limit]]
