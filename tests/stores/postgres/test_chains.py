"""Chains on PostgreSQL: what they are in the tables, and what other transactions do to them at the same moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conformance.kit import key, new, run_one, settle_all, state, states
from conformance.test_gates import chain, promote_all, waiting
from headrace.errors import Unavailable
from headrace.model.job import MAX_BATCH, Batch, JobState, job_id, new_batch, split_id
from headrace.model.outcome import DONE
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs.enqueue_linked import linked_args
from stores.postgres.kit import blocked, take

READY, BLOCKED, CANCELLED = JobState.READY, JobState.BLOCKED, JobState.CANCELLED
ROWS = "select lo, hi, gate = headrace.chain_of(batch) from headrace.blocked order by batch, hi"


async def test_a_chain_is_one_row_that_gets_shorter(pg: PostgresStore, sql: Any):
    links = await chain(pg, 5)
    assert await sql.fetch(ROWS) == [(1, 4, True)]
    for lo in range(2, 5):
        await run_one(pg)
        assert await sql.fetch(ROWS) == [(lo, 4, True)]
    assert await run_one(pg) == links[3]
    assert await sql.fetch(ROWS) == []
    assert await sql.fetchval("select count(*) from headrace.toll") == 0


async def test_shortening_a_chain_writes_no_index_entry(pg: PostgresStore, sql: Any):
    await chain(pg, 5)
    lease = await take(pg)
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
        updated = await sql.fetch(
            "select n_tup_upd, n_tup_hot_upd, n_tup_ins, n_tup_del from pg_stat_xact_user_tables where relname = 'blocked'"
        )
    assert updated == [(1, 1, 0, 0)]


async def test_links_that_may_not_be_stored_are_in_no_chain(pg: PostgresStore, sql: Any):
    id = new_batch()
    jobs = [new(), *(waiting(job_id(id, ord)) for ord in range(6))]
    jobs[3] = waiting(job_id(id, 2), key=key("once"))
    await pg.enqueue(Batch(id, jobs))
    assert await sql.fetch(ROWS) == [(1, 2, True), (3, 3, False), (4, 4, False), (5, 6, True)]


def test_a_call_with_a_job_at_the_last_place_has_no_chains():
    id = new_batch()
    jobs = [new(), *(waiting(job_id(id, ord)) for ord in range(MAX_BATCH - 1))]
    assert linked_args(Batch(id, jobs), None).w_gate is not None
    gates = linked_args(Batch(id, jobs), None).w_gate or []
    assert len(gates) == MAX_BATCH
    assert len(linked_args(Batch(id, jobs[:-1]), None).w_gate or []) == 2


async def test_a_cancelled_link_leaves_two_rows_until_the_rest_has_followed(pg: PostgresStore, sql: Any):
    links = await chain(pg, 7)
    async with sql.transaction():
        await sql.execute("select * from headrace.cancel(array[$1::uuid], null)", links[3])
        assert await sql.fetch(ROWS) == [(1, 2, True), (4, 6, True)]
    await promote_all(pg)
    assert await sql.fetch(ROWS) == [(1, 2, True)]
    assert await states(pg, links) == [READY, BLOCKED, BLOCKED, *[CANCELLED] * 4]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_a_long_chain_is_cancelled_in_pieces(
    pg: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch, limit: int
):
    monkeypatch.setattr("headrace.store.postgres.verbs.follow._RUNS", limit)
    links = await chain(pg, 9)
    await pg.cancel([links[0]], None)
    await promote_all(pg)
    assert await states(pg, links) == [CANCELLED] * 9
    jobs = await pg.get(links[1:])
    assert [job and job.note and str(before) in job.note for job, before in zip(jobs, links, strict=False)] == [
        True
    ] * 8
    assert await sql.fetch("select * from headrace.toll") == []


# ── at the same moment ───────────────────────────────────────────────────────


async def test_a_user_who_waits_for_a_link_holds_its_chain_and_lets_it_go(pg: PostgresStore, sql: Any):
    links = await chain(pg, 5)
    transaction = sql.transaction()
    await transaction.start()
    after = Batch(new_batch(), [waiting(links[3])])
    await pg.aenqueue_in(sql, after)
    assert await run_one(pg) == links[0]
    await pg.promote()
    assert await state(pg, links[1]) is BLOCKED
    await transaction.commit()
    for link in links[1:4]:
        await promote_all(pg)
        assert await run_one(pg) == link
    await promote_all(pg)
    assert await states(pg, [links[4], job_id(after.id, 0)]) == [READY, READY]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_settlement_passes_a_chain_over_that_is_just_cut(pg: PostgresStore, sql: Any, end: str):
    """It leaves a toll, and what follows from it is right however the other transaction ends."""
    links = await chain(pg, 5)
    lease = await take(pg)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("select * from headrace.cancel(array[$1::uuid], null)", links[3])
    await settle_all(pg, lease)
    assert await state(pg, links[1]) is BLOCKED
    await (transaction.commit() if end == "commit" else transaction.rollback())
    await promote_all(pg)
    expected = [CANCELLED, CANCELLED] if end == "commit" else [BLOCKED, BLOCKED]
    assert await states(pg, links) == [JobState.DONE, READY, BLOCKED, *expected]


async def test_a_cancel_waits_for_a_settlement_and_finds_the_link_where_it_is_then(
    pg: PostgresStore, sql: Any, url: str
):
    links = await chain(pg, 4)
    lease = await take(pg)
    user = await asyncpg.connect(url)
    async with user.transaction():
        await pg.asettle_in(user, lease.token, [(0, DONE)])
        cancelling = [asyncio.create_task(pg.cancel([link], "enough")) for link in (links[1], links[2])]
        await blocked(sql, 2)
    await asyncio.gather(*cancelling)
    await user.close()
    await promote_all(pg)
    assert await states(pg, links) == [JobState.DONE, *[CANCELLED] * 3]
    assert [job and job.note for job in await pg.get(links[1:3])] == ["enough", "enough"]


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_a_settlement_that_cannot_see_a_cut_fails(pg: PostgresStore, sql: Any, level: str):
    links = await chain(pg, 4)
    lease = await take(pg)
    transaction = sql.transaction(isolation=level)
    await transaction.start()
    await sql.fetchval("select count(*) from headrace.blocked")
    await pg.cancel([links[2]], None)
    with pytest.raises(Unavailable, match="busy row"):
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
    await transaction.rollback()
    await settle_all(pg, lease)
    await promote_all(pg)
    assert await states(pg, links) == [JobState.DONE, READY, CANCELLED, CANCELLED]


async def test_a_chain_goes_on_while_an_old_snapshot_is_held(pg: PostgresStore, sql: Any):
    """Released links are before the remembered head of their lane, and are not left to the next search of everything."""
    async with sql.transaction(isolation="repeatable_read"):
        await sql.fetchval("select count(*) from headrace.ready")
        heads = [(await chain(pg, 30))[0] for _ in range(60)]
        for _ in range(30):
            waiting_for = len(heads)
            while waiting_for:
                lease = await take(pg)
                waiting_for -= len(lease.jobs)
                await settle_all(pg, lease)
    assert await sql.fetch(ROWS) == []


async def test_a_chain_in_a_users_transaction(pg: PostgresStore, sql: Any):
    id = new_batch()
    async with sql.transaction():
        await pg.aenqueue_in(sql, Batch(id, [new(), *(waiting(job_id(id, ord)) for ord in range(3))]))
        assert await sql.fetch(ROWS) == [(1, 3, True)]
    assert [split_id(await run_one(pg))[1] for _ in range(4)] == [0, 1, 2, 3]
