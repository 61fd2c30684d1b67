"""A guard by job id: what a job does to a database of the user's own happens once, however often the job runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from headrace import Headrace, NoCurrentJob, Once, Retry
from headrace.errors import BadTransaction, ConfigError
from servers.redis import RedisServer


@pytest.fixture
async def once(business: str) -> Once:
    once = Once(business)
    await asyncio.gather(*(Once(business).prepare() for _ in range(4)))
    return once


@pytest.fixture
def as_job(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this code run for another job."""

    class Job:
        id = uuid4()

    job = Job()
    monkeypatch.setattr("headrace.client.once.current_job", lambda: job)

    def another() -> None:
        job.id = uuid4()

    return another


@pytest.mark.usefixtures("as_job")
async def test_what_is_committed_is_not_done_again_and_what_is_rolled_back_is(once: Once, user: Any):
    assert once.first(user)
    user.rollback()
    assert once.first(user)
    assert once.first(user, "mail")
    user.commit()
    assert not once.first(user)
    assert not once.first(user, "mail")
    assert once.first(user, "another")
    user.rollback()


async def test_another_job_is_another(once: Once, user: Any, as_job: Callable[[], None]):
    assert once.first(user)
    as_job()
    assert once.first(user)
    user.commit()


@pytest.fixture(params=["asyncpg", "psycopg", "aiosqlite", "alchemy", "async alchemy"])
async def begin(request: pytest.FixtureRequest, postgres_url: str, file: str) -> AsyncIterator[tuple[str, Any]]:
    """A database, and a connection of this library to it, inside a transaction."""
    sqlite = f"sqlite:///{file}"
    match request.param:
        case "asyncpg":
            connection = await asyncpg.connect(postgres_url)
            await Once(postgres_url).prepare()
            async with connection.transaction():
                yield postgres_url, connection
            await connection.close()
        case "psycopg":
            await Once(postgres_url).prepare()
            async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
                yield postgres_url, connection
        case "aiosqlite":
            await Once(sqlite).prepare()
            async with aiosqlite.connect(file) as connection:
                yield sqlite, connection
        case "alchemy":
            await Once(sqlite).prepare()
            engine = sqlalchemy.create_engine(sqlite)
            with engine.begin() as connection:
                yield sqlite, connection
            engine.dispose()
        case _:
            await Once(postgres_url).prepare()
            async_engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
            async with async_engine.begin() as connection:
                yield postgres_url, connection
            await async_engine.dispose()


@pytest.mark.usefixtures("as_job")
async def test_with_the_connections_of_every_library(begin: tuple[str, Any]):
    url, connection = begin
    once = Once(url)
    assert await once.afirst(connection)
    assert not await once.afirst(connection)


@pytest.mark.usefixtures("as_job")
async def test_a_second_attempt_waits_for_the_transaction_of_the_first(postgres_url: str):
    once = Once(postgres_url)
    await once.prepare()
    one, other = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    began = one.transaction()
    await began.start()
    assert await once.afirst(one)

    async def second() -> bool:
        async with other.transaction():
            return await once.afirst(other)

    waiting = asyncio.create_task(second())
    look = await asyncpg.connect(postgres_url)
    while not await look.fetchval("select count(*) from pg_locks where not granted"):
        assert not waiting.done()
    await began.commit()
    assert not await waiting
    for connection in (one, other, look):
        await connection.close()


@pytest.mark.usefixtures("as_job")
async def test_marks_are_forgotten_when_they_are_old(once: Once, user: Any):
    for step in "abc":
        once.first(user, step)
    user.commit()
    assert await once.forget("1d") == 0
    assert await once.forget("0s") == 3
    assert once.first(user, "a")
    user.rollback()


@pytest.mark.usefixtures("as_job")
async def test_what_is_wrong_is_said(business: str, user: Any):
    with pytest.raises(BadTransaction, match=r"no table headrace_once .*prepare"):
        Once(business).first(user)
    user.rollback()
    with pytest.raises(ConfigError, match="step = "):
        Once(business).first(user, "x" * 201)


def test_outside_a_task_there_is_no_job(business: str, user: Any):
    with pytest.raises(NoCurrentJob):
        Once(business).first(user)


async def test_a_job_that_fails_after_its_commit_does_its_work_once(valkey_server: RedisServer, file: str):
    valkey_server.command("FLUSHALL")
    app = Headrace(valkey_server.url())
    once = Once(f"sqlite:///{file}")
    await once.prepare()
    paid = sqlite3.connect(file)
    paid.execute("create table paid (n integer)")
    attempts: list[bool] = []

    @app.task(name="pay", retry=Retry(max_attempts=5, base="0s"))
    async def pay() -> None:
        connection = sqlite3.connect(file)
        with connection:
            first = once.first(connection)
            attempts.append(first)
            if first:
                connection.execute("insert into paid values (1)")
        connection.close()
        if len(attempts) < 3:
            raise RuntimeError("after the commit")

    handle = await pay.aenqueue()
    async with app.worker():
        await handle.aresult(timeout=60)
    assert attempts == [True, False, False]
    assert paid.execute("select count(*) from paid").fetchone() == (1,)
    paid.close()
    await app.aclose()
