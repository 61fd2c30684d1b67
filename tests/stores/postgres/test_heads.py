"""Remembered lane heads: under an old snapshot claims do not walk over everything that was claimed before."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.job import Batch, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token
from headrace.model.outcome import DONE
from headrace.store.postgres import heads
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import TTL, WORKER, a_batch, claim, put, take


@pytest.fixture
async def old_snapshot(url: str):
    """A transaction that keeps a snapshot open."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await connection.fetchval("select count(*) from headrace.job")
    yield
    await transaction.rollback()
    await connection.close()


def search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a search of everything took so long that there is time for one only."""
    monkeypatch.setattr(heads, "_SHARE", 1e9)
    monkeypatch.setattr(heads, "_LONGEST", 1e9)


async def work_off(store: PostgresStore, count: int) -> None:
    for _ in range(count):
        lease = await take(store, 1)
        await store.settle(lease.token, [(0, DONE)])


async def test_dead_entries_are_not_met_again_and_again(
    pg: PostgresStore, old_snapshot: None, monkeypatch: pytest.MonkeyPatch
):
    """With the memory a claim meets about as many entries at the end as at the beginning."""
    monkeypatch.setattr(heads, "_MANY", 20)
    search_once(monkeypatch)
    for _ in range(120):
        await pg.enqueue(a_batch())
    met: list[int] = []
    learn = heads.Heads.learn

    def listen(self: heads.Heads, row: Any, *, full: bool) -> None:
        met.append(row["wasted"])
        learn(self, row, full=full)

    monkeypatch.setattr(heads.Heads, "learn", listen)
    await work_off(pg, 100)
    assert max(met) > 20, "the snapshot did not keep the dead entries: nothing was tested"
    assert max(met[50:]) < 10


async def test_what_lies_before_the_head_is_found_by_the_next_full_search(
    pg: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
):
    """A call that commits late has its place before what was claimed meanwhile."""
    monkeypatch.setattr(heads, "_MANY", -1000)
    search_once(monkeypatch)
    early = a_batch()
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await pg.aenqueue_in(connection, early)
    await put(pg, 3)
    await work_off(pg, 1)
    await transaction.commit()
    await connection.close()
    assert early.id not in {job.batch for job in (await take(pg, 1)).jobs}
    # Before a claim answers that there is nothing it looks at everything, whatever it remembers.
    await work_off(pg, 1)
    assert [job.batch for job in (await take(pg)).jobs] == [early.id]
    assert await claim(pg) is None


async def test_heads_of_many_lanes(pg: PostgresStore, old_snapshot: None, monkeypatch: pytest.MonkeyPatch):
    """Round robin and order hold with remembered heads as well."""
    monkeypatch.setattr(heads, "_MANY", -1000)
    search_once(monkeypatch)
    tenants = ["a", "b", "c"]
    batch = Batch(new_batch(), [NewJob("t", b"", Lane(tenant=t)) for t in tenants for _ in range(5)])
    await pg.enqueue(batch)
    # The first claim meets every lane, so all of them are known from then on.
    jobs = (await take(pg, 3)).jobs + [job for _ in range(12) for job in (await take(pg, 1)).jobs]
    assert {job.id for job in jobs} == {job_id(batch.id, n) for n in range(15)}
    for start in range(0, 15, 3):
        assert {job.tenant for job in jobs[start : start + 3]} == set(tenants)
    for tenant in tenants:
        ords = [job.ord for job in jobs if job.tenant == tenant]
        assert ords == sorted(ords)


async def test_a_paused_queue_is_not_claimed_from_memory(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heads, "_MANY", -1000)
    search_once(monkeypatch)
    await put(pg, 5)
    await take(pg, 1)
    await pg.pause("default")
    assert await claim(pg) is None
    await pg.resume("default")
    assert len((await take(pg)).jobs) == 4


@pytest.mark.parametrize("queues", [("default",), ("default", "other")])
async def test_a_higher_priority_is_found_from_the_heads(
    pg: PostgresStore, queues: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """It does not wait for the next search of everything: nothing was claimed from its place before."""
    monkeypatch.setattr(heads, "_MANY", -1000)
    search_once(monkeypatch)
    await put(pg, 5)
    await take(pg, 1)
    [urgent] = await put(pg, lane=Lane(queues[-1], 9))
    [between] = await put(pg, lane=Lane(queues[-1], 4))
    # Dead entries in that place would make it costly to look there: here there are none.
    monkeypatch.setattr(heads, "_MANY", 400)
    for wanted in (urgent, between):
        lease = await pg.claim(Ask(WORKER, queues, 1, TTL, new_token()))
        assert lease is not None
        assert [job.id for job in lease.jobs] == [wanted]


def a_row(wasted: int, spent: float) -> dict[str, Any]:
    turns = dict.fromkeys(("turn_priority", "turn_queue", "turn_tenant", "turn_owed", "due_jobs", "served_lane"), ())
    place = {"r_priority": [0], "r_queue": ["q"], "r_tenant": [""], "r_lane": [0], "r_seq": [7]}
    return {**turns, **place, "wasted": wasted, "spent": spent}


def test_everything_is_searched_again_within_a_second(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr("headrace.store.postgres.heads.time.monotonic", lambda: now)
    memory = heads.Heads()
    memory.learn(a_row(400_000, 0.2), full=True)
    assert not memory.args()[1]
    now += 1.0
    assert memory.args()[1]
    # Where a search takes seconds, at most a fifth of the time goes into it.
    memory.learn(a_row(4_000_000, 3.0), full=True)
    now += 11.9
    assert not memory.args()[1]
    now += 0.1
    assert memory.args()[1]


def test_a_costly_look_beside_the_heads_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch):
    now = 1000.0
    monkeypatch.setattr("headrace.store.postgres.heads.time.monotonic", lambda: now)
    memory = heads.Heads()
    assert memory.probe
    memory.learn(a_row(10, 0.2), full=False)
    assert memory.probe
    memory.learn(a_row(400_000, 0.2), full=False)
    assert not memory.probe
    now += 1.0
    assert memory.probe
