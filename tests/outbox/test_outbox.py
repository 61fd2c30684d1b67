"""The outbox: visible if and only if the business transaction committed, and then exactly once as jobs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import aiosqlite
import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from headrace.errors import BadTransaction, ConfigError, Unavailable
from headrace.model.job import Batch, JobState, Key, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import Enqueued, Filter
from headrace.outbox import TABLE, Outbox
from headrace.store.memory import MemoryStore

MINUTE = timedelta(minutes=1)


def batch(*payloads: bytes, **options: Any) -> Batch:
    lane = Lane("billing", 3, "acme", ("shop:1",))
    return Batch(new_batch(), [NewJob("t", payload, lane, **options) for payload in payloads or (b"p",)])


@pytest.fixture
async def outbox(file: str) -> Outbox:
    box = Outbox(f"sqlite:///{file}")
    await box.prepare()
    await box.prepare()
    return box


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def jobs_in(store: MemoryStore) -> list[bytes]:
    return sorted(job.payload for job in (await store.find(Filter())).jobs)


# ── with the transaction, or not at all ──────────────────────────────────────


async def test_what_is_committed_arrives_and_what_is_rolled_back_does_not(
    outbox: Outbox, file: str, store: MemoryStore
):
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, batch(b"kept"))
        assert await outbox.relay(store) == 0
        connection.commit()
        outbox.enqueue_in(connection, batch(b"dropped"))
        connection.rollback()
    assert await outbox.relay(store) == 1
    assert await jobs_in(store) == [b"kept"]
    assert (await outbox.depth()).waiting == 0
    assert await outbox.relay(store) == 0


async def test_a_job_arrives_as_it_was_written(outbox: Outbox, file: str, store: MemoryStore):
    at = datetime(2126, 5, 4, 3, 2, 1, 7, tzinfo=UTC)
    made = batch(b"\x00\xff", b"", options=b"o", due=at)
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, made)
        connection.commit()
    await outbox.relay(store)
    first, second = await store.get([job_id(made.id, 0), job_id(made.id, 1)])
    assert first is not None
    assert second is not None
    assert (first.payload, first.options, first.run_at) == (b"\x00\xff", b"o", at)
    assert (first.queue, first.priority, first.tenant, first.limits) == ("billing", 3, "acme", ("shop:1",))
    assert second.payload == b""


async def test_a_delay_counts_from_the_writing(outbox: Outbox, file: str, store: MemoryStore):
    made = batch(b"a", due=MINUTE)
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, made)
        connection.execute(f"update {TABLE} set written_at = written_at - 2.0 / 1440")
        connection.commit()
    await outbox.relay(store)
    [job] = await store.get([job_id(made.id, 0)])
    assert job is not None
    assert job.state is JobState.READY


async def test_an_empty_batch_is_no_row(outbox: Outbox, file: str):
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, Batch(new_batch(), []))
        connection.commit()
    assert (await outbox.depth()).waiting == 0


# ── at least once, and once as jobs ──────────────────────────────────────────


class Dying(MemoryStore):
    """A relay dies, or its answer is lost, after the store has taken the batch."""

    async def enqueue(self, batch: Batch) -> Enqueued:
        await super().enqueue(batch)
        raise Unavailable("cut")


async def test_a_relay_that_dies_before_it_deletes_makes_no_second_job(outbox: Outbox, file: str):
    store = Dying()
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, batch(b"a", b"b"))
        connection.commit()
    with pytest.raises(Unavailable):
        await outbox.relay(store)
    assert (await outbox.depth()).waiting == 1
    healthy = MemoryStore()
    healthy.__dict__.update(store.__dict__)
    assert await outbox.relay(healthy) == 1
    assert await jobs_in(healthy) == [b"a", b"b"]


async def test_many_relays_at_once(outbox: Outbox, file: str, store: MemoryStore):
    with closing(sqlite3.connect(file)) as connection:
        for number in range(60):
            outbox.enqueue_in(connection, batch(b"%d" % number))
        connection.commit()
    await asyncio.gather(*(outbox.relay(store, limit=100) for _ in range(4)))
    assert len((await store.find(Filter(), limit=200)).jobs) == 60
    assert (await outbox.depth()).waiting == 0


async def test_rows_leave_in_the_order_of_their_calls(outbox: Outbox, file: str, store: MemoryStore):
    made = [batch(b"%d" % number) for number in range(5)]
    with closing(sqlite3.connect(file)) as connection:
        for each in made:
            outbox.enqueue_in(connection, each)
        connection.commit()
    assert await outbox.relay(store, limit=2) == 2
    assert await jobs_in(store) == [b"0", b"1"]


async def test_what_the_store_will_never_take_is_kept_and_stops_nobody(
    outbox: Outbox, file: str, store: MemoryStore, caplog: pytest.LogCaptureFixture
):
    hour = timedelta(hours=1)
    await store.enqueue(batch(b"first", key=Key("k", hour, b"1")))
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, batch(b"second", key=Key("k", hour, b"2")))
        outbox.enqueue_in(connection, batch(b"third"))
        connection.commit()
    assert await outbox.relay(store) == 1
    assert await jobs_in(store) == [b"first", b"third"]
    depth = await outbox.depth()
    assert (depth.waiting, depth.refused) == (0, 1)
    assert "already made job" in caplog.text


async def test_the_relay_goes_on_through_an_outage(outbox: Outbox, file: str, caplog: pytest.LogCaptureFixture):
    class Back(MemoryStore):
        tries = 0
        arrived = asyncio.Event()

        async def enqueue(self, batch: Batch) -> Enqueued:
            self.tries += 1
            if self.tries < 3:
                raise Unavailable("down")
            self.arrived.set()
            return await super().enqueue(batch)

    store, stop = Back(), asyncio.Event()
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, batch(b"a"))
        connection.commit()
    relay = asyncio.ensure_future(outbox.run(store, poll=timedelta(milliseconds=5), stop=stop))
    await store.arrived.wait()
    stop.set()
    await relay
    assert await jobs_in(store) == [b"a"]
    assert "the relay goes on" in caplog.text


# ── whatever the transaction is ──────────────────────────────────────────────


async def test_aiosqlite(outbox: Outbox, file: str, store: MemoryStore):
    async with aiosqlite.connect(file) as connection:
        await outbox.aenqueue_in(connection, batch(b"a"))
        await connection.commit()
        with pytest.raises(BadTransaction, match="async"):
            outbox.enqueue_in(connection, batch())
    await outbox.relay(store)
    assert await jobs_in(store) == [b"a"]


async def test_sqlalchemy(file: str, store: MemoryStore):
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    outbox = Outbox(engine)
    await outbox.prepare()
    with Session(engine) as session:
        outbox.enqueue_in(session, batch(b"a"))
        session.commit()
        await outbox.aenqueue_in(session, batch(b"no"))
        session.rollback()
    with engine.begin() as connection:
        outbox.enqueue_in(connection, batch(b"b"))
    assert await outbox.relay(store) == 2
    assert await jobs_in(store) == [b"a", b"b"]
    engine.dispose()


async def test_async_sqlalchemy(file: str, store: MemoryStore):
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    outbox = Outbox(engine)
    await outbox.prepare()
    async with AsyncSession(engine) as session:
        await outbox.aenqueue_in(session, batch(b"a"))
        await session.commit()
        await outbox.aenqueue_in(session, batch(b"no"))
        await session.rollback()
    async with engine.begin() as connection:
        await outbox.aenqueue_in(connection, batch(b"b"))
    assert await outbox.relay(store) == 2
    assert await jobs_in(store) == [b"a", b"b"]
    await engine.dispose()


@pytest.fixture
async def pg_outbox(postgres_url: str) -> Outbox:
    box = Outbox(postgres_url)
    await box.prepare()
    return box


async def test_postgresql_by_asyncpg_and_psycopg(pg_outbox: Outbox, postgres_url: str, store: MemoryStore):
    connection = await asyncpg.connect(postgres_url)
    with pytest.raises(BadTransaction, match="not in a transaction"):
        await pg_outbox.aenqueue_in(connection, batch())
    async with connection.transaction():
        await pg_outbox.aenqueue_in(connection, batch(b"a", due=timedelta(0)))
    await connection.close()
    with psycopg.connect(postgres_url) as sync:
        pg_outbox.enqueue_in(sync, batch(b"b"))
        sync.commit()
        pg_outbox.enqueue_in(sync, batch(b"no"))
        sync.rollback()
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        await pg_outbox.aenqueue_in(other, batch(b"c"))
    assert await pg_outbox.relay(store) == 3
    assert await jobs_in(store) == [b"a", b"b", b"c"]
    assert (await pg_outbox.depth()).waiting == 0


async def test_postgresql_by_sqlalchemy(pg_outbox: Outbox, postgres_url: str, store: MemoryStore):
    address = postgres_url.partition("://")[2]
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://{address}")
    with Session(engine) as session, session.begin():
        pg_outbox.enqueue_in(session, batch(b"a"))
    assert await Outbox(engine).relay(store) == 1
    engine.dispose()
    aengine = create_async_engine(f"postgresql+asyncpg://{address}")
    async with AsyncSession(aengine) as session, session.begin():
        await pg_outbox.aenqueue_in(session, batch(b"b"))
    assert await Outbox(aengine).relay(store) == 1
    await aengine.dispose()
    assert await jobs_in(store) == [b"a", b"b"]


@pytest.fixture
def django_alias(file: str) -> Iterator[str]:
    """A Django database on the file."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    connections: Any = import_module("django.db").connections
    default = connections.databases["default"]
    connections.databases["business"] = {**default, "ENGINE": "django.db.backends.sqlite3", "NAME": file}
    yield "business"
    connections["business"].close()
    del connections["business"]
    del connections.databases["business"]


async def test_django(file: str, django_alias: str, store: MemoryStore):
    outbox = Outbox(django_alias)
    await outbox.prepare()
    db: Any = import_module("django.db")

    def use() -> None:
        with pytest.raises(BadTransaction, match="atomic"):
            outbox.enqueue_in(django_alias, batch())
        with db.transaction.atomic(using=django_alias):
            outbox.enqueue_in(django_alias, batch(b"a"))
            outbox.enqueue_in(db.connections[django_alias], batch(b"b"))
        with db.transaction.atomic(using=django_alias):
            outbox.enqueue_in(django_alias, batch(b"no"))
            db.transaction.set_rollback(True, using=django_alias)
        db.connections[django_alias].close()

    await asyncio.to_thread(use)
    assert await outbox.relay(store) == 2
    assert await jobs_in(store) == [b"a", b"b"]
    with pytest.raises(BadTransaction, match="no database"):
        outbox.enqueue_in("nobody", batch())


# ── a table that is missing ──────────────────────────────────────────────────


async def test_where_nobody_made_the_table_the_way_out_is_told(file: str, postgres_url: str, django_alias: str):
    box = Outbox(f"sqlite:///{file}")
    way_out = pytest.raises(BadTransaction, match=r"headrace_outbox.*prepare\(\)")
    with closing(sqlite3.connect(file)) as connection, way_out:
        box.enqueue_in(connection, batch())
    async with aiosqlite.connect(file) as connection:
        with way_out:
            await box.aenqueue_in(connection, batch())
    with psycopg.connect(postgres_url) as connection, way_out:
        box.enqueue_in(connection, batch())
    connection = await asyncpg.connect(postgres_url)
    with way_out:
        async with connection.transaction():
            await box.aenqueue_in(connection, batch())
    await connection.close()
    for url in (f"sqlite:///{file}", postgres_url.replace("postgresql://", "postgresql+psycopg://")):
        engine = sqlalchemy.create_engine(url)
        with Session(engine) as session, way_out:
            box.enqueue_in(session, batch())
        engine.dispose()
    aengine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(aengine) as session:
        with way_out:
            await box.aenqueue_in(session, batch())
    await aengine.dispose()

    def use() -> None:
        db: Any = import_module("django.db")
        with way_out, db.transaction.atomic(using=django_alias):
            box.enqueue_in(django_alias, batch())
        db.connections[django_alias].close()

    await asyncio.to_thread(use)


async def test_another_problem_stays_what_it_is(outbox: Outbox, file: str):
    made = batch()
    with closing(sqlite3.connect(file)) as connection:
        outbox.enqueue_in(connection, made)
        with pytest.raises(sqlite3.IntegrityError):
            outbox.enqueue_in(connection, made)


async def test_a_delay_counts_from_the_writing_not_from_the_beginning_of_the_transaction(
    pg_outbox: Outbox, postgres_url: str
):
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        await connection.execute("select now()")
        await pg_outbox.aenqueue_in(connection, batch(due=MINUTE))
        assert await connection.fetchval(f"select written_at > now() from {TABLE}")
    await connection.close()


# ── bad input ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [7, None, "redis://somewhere", "mysql://somewhere/db"])
def test_no_database_for_an_outbox(given: object):
    with pytest.raises(ConfigError, match="outbox"):
        Outbox(given)


@pytest.mark.parametrize("given", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///%3Amemory%3A"])
def test_no_outbox_in_memory(given: str):
    with pytest.raises(ConfigError, match="memory"):
        Outbox(given)
    engine = sqlalchemy.create_engine(given)
    with pytest.raises(ConfigError, match="memory"):
        Outbox(engine)
    engine.dispose()


async def test_no_outbox_in_another_database():
    engine = sqlalchemy.create_engine("mysql+pymysql://nobody@nowhere/db", module=SimpleNamespace(paramstyle="format"))
    with pytest.raises(ConfigError, match="PostgreSQL or SQLite"):
        await Outbox(engine).prepare()


@pytest.mark.parametrize("tx", [object(), 7, None])
async def test_no_transaction(outbox: Outbox, tx: object):
    with pytest.raises(BadTransaction):
        outbox.enqueue_in(tx, batch())
    with pytest.raises(BadTransaction):
        await outbox.aenqueue_in(tx, batch())


async def test_a_connection_that_would_commit_at_once(outbox: Outbox, file: str):
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        with pytest.raises(BadTransaction, match="BEGIN"):
            outbox.enqueue_in(connection, batch())
        connection.execute("begin")
        outbox.enqueue_in(connection, batch())
        connection.execute("rollback")
