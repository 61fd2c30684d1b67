"""tx= at other isolation levels: what has changed since the snapshot ends the user's transaction, nothing is overlooked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.errors import Unavailable
from headrace.model.job import Batch, JobState, Key, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import Again
from headrace.model.records import CancelAnswer
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import TTL, claim, put, take

LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})
pytestmark = pytest.mark.parametrize("level", ["repeatable_read", "serializable"])


def one(*, replace: bool = False) -> Batch:
    return Batch(new_batch(), [NewJob("t", b"", Lane(), unique=UniqueLock("u", LIVE, replace=replace))])


@pytest.fixture
async def tx(sql: Any, level: str) -> AsyncIterator[Any]:
    """A user's transaction that has its snapshot already."""
    transaction = sql.transaction(isolation=level)
    await transaction.start()
    await sql.fetch("select from headrace.lease")
    yield sql
    await transaction.rollback()


async def test_a_cancel_is_not_overlooked_by_a_settlement(pg: PostgresStore, sql: Any, level: str):
    [job] = await put(pg)
    lease = await take(pg)
    transaction = sql.transaction(isolation=level)
    await transaction.start()
    await sql.fetch("select from headrace.lease")
    assert await pg.cancel([job]) == {job: CancelAnswer.ASKED}
    with pytest.raises(Unavailable):
        await pg.asettle_in(sql, lease.token, [(0, Again(0, 0))])
    await transaction.rollback()
    # In a new transaction it is heard.
    async with sql.transaction(isolation=level):
        assert await pg.asettle_in(sql, lease.token, [(0, Again(0, 0))]) == frozenset()
    assert await claim(pg) is None
    [found] = await pg.get([job])
    assert found is not None
    assert found.state is JobState.CANCELLED


async def test_a_unique_lock_that_was_taken_since(pg: PostgresStore, tx: Any):
    await pg.enqueue(one())
    with pytest.raises(Unavailable):
        await pg.aenqueue_in(tx, one())


async def test_a_job_to_replace_that_was_claimed_since(pg: PostgresStore, sql: Any, level: str):
    first = one()
    await pg.enqueue(first)
    transaction = sql.transaction(isolation=level)
    await transaction.start()
    await sql.fetch("select from headrace.lease")
    await take(pg)
    with pytest.raises(Unavailable):
        await pg.aenqueue_in(sql, one(replace=True))
    await transaction.rollback()
    [found] = await pg.get([job_id(first.id, 0)])
    assert found is not None
    assert found.state is JobState.RUNNING


async def test_a_key_that_was_used_since(pg: PostgresStore, tx: Any):
    def keyed() -> Batch:
        return Batch(new_batch(), [NewJob("t", b"", Lane(), None, Key("k", TTL, b"d"))])

    await pg.enqueue(keyed())
    with pytest.raises(Unavailable):
        await pg.aenqueue_in(tx, keyed())
