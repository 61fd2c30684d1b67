"""Looks are bounded: a call looks at so many jobs and says where to go on; nothing is left out or shown twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.model.gate import NewGate, Wait, new_gate_id
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Filter, Page
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs import ended, lanes, stats
from stores.postgres.kit import claim

MANY = 1200


async def enqueue(
    pg: PostgresStore, task: str, count: int = 1, *, due: timedelta | None = None, wait: Wait | None = None
) -> list[JobId]:
    batch = Batch(new_batch(), [NewJob(task, b"", Lane(queue=task), due, wait=wait) for _ in range(count)])
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
    """It is the oldest and the only job of its task. The first page ends before it, with `next` set."""
    due = timedelta(hours=1) if state is JobState.SCHEDULED else None
    gate = NewGate(id=new_gate_id(), queue="needle", signalled=True)
    await pg.enqueue(Batch(new_batch(), [], (gate,)))
    wait = Wait(gate.id) if state is JobState.BLOCKED else None
    [first] = await enqueue(pg, "needle", due=due, wait=wait)
    await enqueue(pg, "hay", MANY, due=due, wait=wait)
    [last] = await enqueue(pg, "needle", due=due, wait=wait)
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


# ── stats and lanes ─────────────────────────────────────────────────────────


async def tenants(pg: PostgresStore, *names: str, queue: str = "q", priority: int = 0) -> None:
    await pg.enqueue(Batch(new_batch(), [NewJob("t", b"", Lane(queue, priority, name)) for name in names]))


async def test_figures_come_in_pages(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats, "_QUEUES", 3)
    monkeypatch.setattr(stats, "_HEADS", 2)
    for number in range(10):
        if number % 4:
            await tenants(pg, *"abc"[: number % 4], queue=f"q{number}")
    await pg.pause("p")
    await pg.pause("q3")
    await pg.promote()
    await tenants(pg, "x", queue="q5")
    found = (await pg.stats()).queues
    assert [(each.queue, each.ready, each.paused) for each in found] == [
        ("p", 0, True), ("q1", 1, False), ("q2", 2, False), ("q3", 3, True), ("q5", 2, False), ("q6", 2, False),
        ("q7", 3, False), ("q9", 1, False),
    ]  # fmt: skip
    assert all((each.oldest_ready is not None) is (each.ready > 0) for each in found)
    assert not any(each.oldest_at_least for each in found)


@pytest.mark.parametrize(("most", "more"), [(4, True), (5, False), (6, False)])
async def test_the_oldest_of_many_lanes(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch, most: int, more: bool):
    monkeypatch.setattr(stats, "_HEADS", 1)
    monkeypatch.setattr(stats, "_FEW", 1)
    monkeypatch.setattr(stats, "MAX_LANES", most)
    for priority, name in ((0, "a"), (5, "b"), (0, ""), (-3, "c"), (5, "a")):
        await tenants(pg, name, priority=priority)
    [figures] = (await pg.stats()).queues
    assert figures.oldest_ready is not None
    assert figures.oldest_at_least is more


@pytest.mark.parametrize(("page", "ranges"), [(1, 100), (3, 100), (100, 1), (100, 7)])
async def test_lanes_come_in_pages(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch, page: int, ranges: int):
    monkeypatch.setattr(lanes, "_PAGE", page)
    monkeypatch.setattr(lanes, "_RANGES", ranges)
    names = [f"t{number}" for number in range(7)]
    for priority in (3, 0):
        for _ in range(2):
            await tenants(pg, *names, priority=priority)
    views = await pg.lanes(["q"])
    assert [(view.priority, view.tenant, view.jobs) for view in views] == [
        (priority, name, 2) for priority in (3, 0) for name in names
    ]
    seen = [(view.priority, view.tenant) for _ in range(7) for view in await pg.lanes(["q"], 4)]
    assert len(set(seen)) == 14
    assert len(seen) == 28


@pytest.mark.parametrize(("many", "page"), [(1, 1), (3, 2), (10, 7)])
async def test_endings_come_in_pages(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch, many: int, page: int):
    monkeypatch.setattr(ended, "_SORTED", many)
    monkeypatch.setattr(ended, "_PAGE", page)
    begun = await pg.now()
    made = [id for _ in range(4) for id in await enqueue(pg, "t", 5)]
    while lease := await claim(pg, 3, "t"):
        await pg.settle(lease.token, [(n, DONE) for n in range(len(lease.jobs))])
    found = await pg.ended(begun)
    assert sorted(each.id for each in found) == sorted(made)
    assert found == sorted(found, key=lambda each: (each.at, each.id))
    for limit in (0, 1, 8, 20):
        assert await pg.ended(begun, limit) == found[:limit]
