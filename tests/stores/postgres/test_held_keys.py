"""A key or a lock that a transaction of others holds: only jobs with the same one wait for it, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from headrace.client.client import Client
from headrace.errors import KeyHeld
from headrace.model.job import Batch, JobId, JobState, Key, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs import enqueue as module

DAY = timedelta(days=1)
KEYED = NewJob("t", b"{}", Lane(), key=Key("k", DAY, b"d"))
LOCKED = NewJob("t", b"{}", Lane(), unique=UniqueLock("u", frozenset({JobState.READY})))
OTHER = NewJob("t", b"{}", Lane(), key=Key("other", DAY, b"d"))
PLAIN = NewJob("t", b"{}", Lane(tenant="somebody"))


@asynccontextmanager
async def held(url: str, pg: PostgresStore, job: NewJob) -> AsyncGenerator[JobId]:
    """A transaction of others that has enqueued this job, open until the block ends; then it commits."""
    connection = await asyncpg.connect(url)
    batch = Batch(new_batch(), [job])
    try:
        async with connection.transaction():
            await pg.aenqueue_in(connection, batch)
            yield job_id(batch.id, 0)
    finally:
        await connection.close()


async def until_blocked(sql: Any, count: int = 1) -> None:
    while await sql.fetchval("select count(*) from pg_locks where not granted") < count:
        pass


@pytest.mark.parametrize("job", [KEYED, LOCKED], ids=["key", "lock"])
async def test_other_jobs_of_the_process_do_not_wait(
    url: str, pg: PostgresStore, sql: Any, job: NewJob, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_PATIENCE", "60s")
    client = Client(pg)
    async with held(url, pg, job) as first:
        blocked = [asyncio.create_task(client.put(job)) for _ in range(5)]
        await until_blocked(sql)
        async with asyncio.timeout(50):
            await asyncio.gather(*(client.put(PLAIN) for _ in range(3)))
            await client.put(OTHER)
        assert not any(task.done() for task in blocked)
    assert set(await asyncio.gather(*blocked)) == {first}
    await client.leave()


@pytest.mark.parametrize("job", [KEYED, LOCKED], ids=["key", "lock"])
async def test_a_transaction_that_does_not_end_is_an_error_that_says_so(
    url: str, pg: PostgresStore, job: NewJob, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_PATIENCE", "50ms")
    client = Client(pg)
    async with held(url, pg, job) as first:
        with pytest.raises(KeyHeld, match="a transaction that has not ended has enqueued with the same key"):
            await client.put(job)
        with pytest.raises(KeyHeld):
            await client.enqueue([job, PLAIN])
    assert (await pg.stats()).queues[0].ready == 1
    assert await client.put(job) == first
    await client.leave()


async def test_a_job_that_shares_a_trip_with_a_held_key_is_stored(
    url: str, pg: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch
):
    client = Client(pg)
    names = [NewJob("t", b"{}", Lane(), key=Key(str(n), DAY, b"d")) for n in range(8)]
    monkeypatch.setattr(module, "_PATIENCE", "50ms")
    async with held(url, pg, KEYED):
        done = await asyncio.gather(*(client.put(job) for job in (*names, KEYED, *names)), return_exceptions=True)
    assert [type(each) for each in done if isinstance(each, Exception)] == [KeyHeld]
    assert len({each for each in done if not isinstance(each, Exception)}) == 8
    await client.leave()
