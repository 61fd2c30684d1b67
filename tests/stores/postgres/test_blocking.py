"""The enqueue of sync code on PostgreSQL: the connection of its own, what breaks it, and what it leaves to the pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headrace.errors import OutcomeUnknown, Unavailable
from headrace.store.postgres.blocking import BlockingEnqueue
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import a_batch, claim, take
from stores.postgres.test_faults import Proxy, proxied

LONG = 60
"""Seconds that no test waits: an event ends every wait."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent server."""
    monkeypatch.setattr("headrace.store.postgres.blocking._PATIENCE", LONG)


@pytest.fixture
def blocking(pg: PostgresStore) -> Iterator[BlockingEnqueue]:
    yield from made(pg)


def made(store: PostgresStore) -> Iterator[BlockingEnqueue]:
    found = store.blocking()
    assert found is not None
    yield found
    found.close()


@pytest.fixture
async def cut(url: str) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    async with proxied(url) as both:
        yield both


async def enqueue(blocking: BlockingEnqueue, count: int = 1) -> None:
    await asyncio.to_thread(blocking.enqueue, a_batch(count))


async def test_a_batch_is_stored_and_a_repetition_changes_nothing(pg: PostgresStore, blocking: BlockingEnqueue):
    batch = a_batch(3)
    for _ in range(2):
        assert (await asyncio.to_thread(blocking.enqueue, batch)).existing == {}
    assert (await pg.enqueue(batch)).existing == {}
    assert [job.ord for job in (await take(pg)).jobs] == [0, 1, 2]
    await asyncio.to_thread(blocking.close)


async def test_a_lost_answer_is_an_unknown_outcome_and_the_store_repeats_the_batch(cut: tuple[PostgresStore, Proxy]):
    store, proxy = cut
    blocking = store.blocking()
    assert blocking is not None
    await enqueue(blocking)
    batch = a_batch(3)
    proxy.only, proxy.cuts = blocking._connection.get_server_pid(), 1
    with pytest.raises(OutcomeUnknown):
        await asyncio.to_thread(blocking.enqueue, batch)
    assert proxy.lost == 1
    await store.enqueue(batch)
    await enqueue(blocking)
    assert len((await take(store)).jobs) == 5
    await asyncio.to_thread(blocking.close)


async def test_a_connection_that_the_server_has_closed_is_replaced(
    pg: PostgresStore, blocking: BlockingEnqueue, sql: Any
):
    await enqueue(blocking)
    pid = blocking._connection.get_server_pid()
    # PostgreSQL 13 has no variant of this function that waits for the end of the session.
    await sql.execute("select pg_terminate_backend($1)", pid)
    while await sql.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid):
        pass
    await enqueue(blocking)
    assert blocking._connection.get_server_pid() != pid
    assert len((await take(pg)).jobs) == 2
    await asyncio.to_thread(blocking.close)


async def test_a_server_that_works_too_long_is_an_unknown_outcome(
    pg: PostgresStore, blocking: BlockingEnqueue, sql: Any, monkeypatch: pytest.MonkeyPatch
):
    await enqueue(blocking)
    monkeypatch.setattr("headrace.store.postgres.blocking._PATIENCE", 0.05)
    async with sql.transaction():
        await sql.execute("lock table headrace.job in access exclusive mode")
        with pytest.raises(OutcomeUnknown):
            await enqueue(blocking)
    monkeypatch.setattr("headrace.store.postgres.blocking._PATIENCE", LONG)
    await enqueue(blocking)
    await asyncio.to_thread(blocking.close)


async def test_waiters_of_the_same_store_and_of_another_are_woken(
    pg: PostgresStore, blocking: BlockingEnqueue, url: str
):
    other = PostgresStore(url)
    await other.open()
    for store in (pg, other, pg, other):
        assert await claim(store) is None
        sleeper = asyncio.create_task(store.wait(["default"], LONG))
        await enqueue(blocking)
        while await claim(store) is None:
            assert await sleeper, "no hint came"
            sleeper = asyncio.create_task(store.wait(["default"], LONG))
        sleeper.cancel()
    await other.close()
    await asyncio.to_thread(blocking.close)


async def test_a_closed_one_is_refused(blocking: BlockingEnqueue):
    blocking.close()
    blocking.close()
    with pytest.raises(Unavailable):
        blocking.enqueue(a_batch())


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_only_the_pool_speaks_to_a_pooler(url: str, mode: str):
    assert PostgresStore(f"{url}?pooler={mode}").blocking() is None
