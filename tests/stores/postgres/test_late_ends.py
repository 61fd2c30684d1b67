"""ended_until: ends before that time are visible, also those of transactions that take long to commit."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.lease import new_token
from headrace.model.outcome import DONE
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs import ended
from stores.postgres.kit import put, take


async def test_without_transactions_it_is_the_present(pg: PostgresStore):
    before = await pg.now()
    assert before <= await pg.ended_until() <= await pg.now()


async def test_it_waits_for_a_transaction_that_settles(pg: PostgresStore, sql: Any):
    [id] = await put(pg)
    lease, token = await take(pg), new_token()
    assert await pg.detach(lease.token, 0, token)
    transaction = sql.transaction()
    await transaction.start()
    before = await pg.now()
    assert await pg.asettle_in(sql, token, [(0, DONE)]) == frozenset()
    for _ in range(3):
        assert await pg.ended_until() <= before
        assert await pg.ended(before) == []
    await transaction.commit()
    reached = await pg.ended_until()
    [ending] = await pg.ended(before)
    assert ending.id == id
    assert before < ending.at < reached


async def test_it_moves_on_with_transactions_that_overlap(pg: PostgresStore, sql: Any, url: str):
    first = sql.transaction()
    await first.start()
    await sql.execute("select pg_current_xact_id()")
    begun = await pg.ended_until()
    middle = await pg.now()
    assert await pg.ended_until() == begun
    other = await asyncpg.connect(url)
    try:
        second = other.transaction()
        await second.start()
        await other.execute("select pg_current_xact_id()")
        await first.commit()
        # The second transaction began after these calls, so what was before them is visible.
        assert middle <= await pg.ended_until() <= await pg.now()
        late = await pg.now()
        assert await pg.ended_until() < late
        await second.rollback()
        assert await pg.ended_until() > late
    finally:
        await other.close()


async def test_a_long_transaction_makes_no_long_list(pg: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ended, "_MARKS", 8)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("select pg_current_xact_id()")
    for _ in range(50):
        await pg.ended_until()
    assert len(pg._end_horizon._marks) <= 8
    last = await pg.now()
    await transaction.rollback()
    assert await pg.ended_until() > last
