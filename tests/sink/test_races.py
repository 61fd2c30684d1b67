"""No end is missed: many processes settle at once, and transactions commit long after their time, while the sink reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import claim, put, run_one, settle_all, take
from headrace.model.job import JobId
from headrace.model.lease import new_token
from headrace.model.outcome import DONE
from headrace.sink import sink as sinks
from headrace.store.contract import Store
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.testing.clock import FakeClock
from races.kit import in_threads
from sink.kit import Table

JOBS, SETTLERS = 400, 4


@pytest.fixture(params=["sqlite", "postgres", "redis", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_settles_beside_the_sink(store_url: str, table: Table):
    """The first look alone misses ends on PostgreSQL, because the time of an end is taken before its commit."""
    left = [SETTLERS]
    over = threading.Event()

    async def settle(store: Store) -> list[JobId]:
        ids = await put(store, JOBS // SETTLERS)
        while (lease := await claim(store, 3)) is not None:
            await settle_all(store, lease)
        left[0] -= 1
        if not left[0]:
            over.set()
        return ids

    async def copy(store: Store) -> list[JobId]:
        sink = table.sink(store)
        while not over.is_set():
            await sink.tidy()
        while await sink.tidy() and sink._sure < sink._read:  # noqa: ASYNC110  # The second look waits for the store's clock.
            await asyncio.sleep(0.1)
        return []

    ids = [id for some in in_threads(store_url, *[settle] * SETTLERS, copy) for id in some]
    assert table.ids() == sorted(ids)


@pytest.mark.parametrize("store_name", ["postgres"], indirect=True)
class TestLongTransactions:
    @pytest.fixture
    async def sql(self, store_url: str) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(store_url)
        yield connection
        await connection.close()

    async def test_an_end_in_a_users_long_transaction_is_not_missed(
        self, store: PostgresStore, clock: FakeClock, table: Table, sql: Any
    ):
        sink = table.sink(store)
        ids = await put(store, 4)
        lease, token = await take(store, 1), new_token()
        assert await store.detach(lease.token, 0, token)
        transaction = sql.transaction()
        await transaction.start()
        await store.asettle_in(sql, token, [(0, DONE)])
        for _ in range(3):
            clock.advance(timedelta(minutes=10))
            await run_one(store)
            await sink.tidy()
        # The other rows do not wait for the transaction.
        assert table.ids() == sorted(set(ids) - {lease.jobs[0].id})
        await transaction.commit()
        await sink.tidy()
        assert table.ids() == sorted(ids)
        assert table.count() == len(ids)

    async def test_a_sink_that_starts_again_meanwhile_finds_it_too(
        self, store: PostgresStore, clock: FakeClock, table: Table, sql: Any
    ):
        ids = await put(store, 3)
        lease, token = await take(store, 1), new_token()
        assert await store.detach(lease.token, 0, token)
        transaction = sql.transaction()
        await transaction.start()
        await store.asettle_in(sql, token, [(0, DONE)])
        for number in range(2):
            clock.advance(timedelta(minutes=10))
            await run_one(store)
            await table.sink(store, f"host:{number}").tidy()
        await transaction.commit()
        clock.advance(timedelta(minutes=10))
        await table.sink(store, "host:9").tidy()
        assert table.ids() == sorted(ids)

    async def test_new_ends_do_not_wait_for_a_long_second_look(
        self, store: PostgresStore, clock: FakeClock, table: Table, sql: Any, monkeypatch: pytest.MonkeyPatch
    ):
        for name, value in (("REMEMBERED", 5), ("BATCH", 10), ("PAGE", 10)):
            monkeypatch.setattr(sinks, name, value)
        sink = table.sink(store)
        ids = await put(store, 60)
        lease, token = await take(store, 1), new_token()
        assert await store.detach(lease.token, 0, token)
        transaction = sql.transaction()
        await transaction.start()
        await store.asettle_in(sql, token, [(0, DONE)])
        for _ in range(58):
            clock.advance(timedelta(seconds=1))
            await run_one(store)
        await sink.drain()
        assert len(table.ids()) == 58
        await transaction.commit()
        clock.advance(timedelta(minutes=1))
        last = await run_one(store)
        await sink.tidy()
        assert (
            not sink.caught_up
        )  # Most rows are not remembered, so the second look writes them again, a batch at a time.
        assert last in table.ids()
        await sink.drain()
        assert table.ids() == sorted(ids)
