"""`tx=`: every kind of connection that can carry a job, and every kind that cannot."""

from __future__ import annotations

import asyncio
import importlib
import re
import sqlite3
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import aiosqlite
import django
import pytest
import sqlalchemy as sa
from django.conf import settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from conformance.kit import batch, claim, counts, key, new, put, state, take
from headrace.errors import BadTransaction, IdempotencyConflict, SchemaMismatch, Unavailable
from headrace.model.gate import NewGate, Predecessor, new_gate_id
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.outcome import DONE
from headrace.store.sqlite.engine import connection
from headrace.store.sqlite.store import SqliteStore
from headrace.store.transactional import Transactional


def one() -> tuple[Batch, JobId]:
    made = batch(new())
    return made, job_id(made.id, 0)


@pytest.fixture
def conn(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """The user's own, in Python's default mode, with a table of their own."""
    conn = sqlite3.connect(file)
    conn.execute("create table orders (id integer primary key)")
    yield conn
    conn.close()


def orders(file: Path) -> int:
    with sqlite3.connect(file) as conn:
        count = conn.execute("select count(*) from orders").fetchone()[0]
    conn.close()
    return count


async def test_it_says_that_it_can(sqlite_store: SqliteStore):
    assert isinstance(sqlite_store, Transactional)


@pytest.mark.parametrize("log", ["delete", "wal"])
async def test_a_new_file_is_not_made_ready_inside_the_users_transaction(
    url: str, file: Path, log: str, monkeypatch: pytest.MonkeyPatch
):
    """Neither its log nor its tables; the way out is named, as the command takes it."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT", 0.05)
    conn = sqlite3.connect(file, isolation_level=None)
    conn.execute(f"pragma journal_mode = {log}")
    conn.execute("begin immediate")
    store = SqliteStore(url)
    with pytest.raises(Unavailable, match=re.escape(f"run `headrace migrate --store sqlite:///{file}`")):
        await store.open()
    conn.execute("rollback")
    await store.open()
    conn.execute("begin immediate")
    made, id = one()
    store.enqueue_in(conn, made)
    conn.execute("commit")
    conn.close()
    assert await state(store, id) is JobState.READY
    await store.close()


# ── sqlite3 ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("begin", [None, "begin", "begin immediate", "insert into orders values (1)"])
async def test_a_job_commits_with_the_users_writes(
    sqlite_store: SqliteStore, conn: sqlite3.Connection, begin: str | None
):
    made, id = one()
    if begin:
        conn.execute(begin)
    sqlite_store.enqueue_in(conn, made)
    assert await state(sqlite_store, id) is None
    assert conn.in_transaction
    conn.commit()
    assert await state(sqlite_store, id) is JobState.READY
    assert await counts(sqlite_store) == {"ready": 1}


async def test_a_transaction_sees_the_jobs_and_gates_that_it_has_added(
    sqlite_store: SqliteStore, conn: sqlite3.Connection
):
    [stored] = await put(sqlite_store)
    job = NewJob("a", b"", Lane("q", tenant="acme"), options=b"\x01")
    gate = NewGate(id=new_gate_id(), queue="q", label="group", tenant="globex")
    made = Batch(new_batch(), [job], (gate,))
    ids = [gate.id, new_gate_id(), job_id(made.id, 0), stored]
    assert sqlite_store.followed_in(conn, ids) == [None, None, None, Predecessor()]
    sqlite_store.enqueue_in(conn, made)
    assert sqlite_store.followed_in(conn, ids) == [
        Predecessor("globex"),
        None,
        Predecessor("acme", b"\x01"),
        Predecessor(),
    ]
    assert await sqlite_store.afollowed_in(conn, ids[:1]) == [Predecessor("globex")]
    conn.rollback()
    assert sqlite_store.followed_in(conn, ids[:1]) == [None]


async def test_a_job_rolls_back_with_the_users_writes(sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path):
    made, id = one()
    conn.execute("insert into orders values (1)")
    await sqlite_store.aenqueue_in(conn, made)
    conn.rollback()
    assert await state(sqlite_store, id) is None
    assert await counts(sqlite_store) == {}
    assert orders(file) == 0
    await sqlite_store.enqueue(made)
    assert await state(sqlite_store, id) is JobState.READY


async def test_a_refused_job_leaves_the_users_transaction_as_it_was(
    sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path
):
    await sqlite_store.enqueue(batch(new(key=key("k", b"1"))))
    conn.execute("insert into orders values (1)")
    with pytest.raises(IdempotencyConflict):
        sqlite_store.enqueue_in(conn, batch(new(), new(key=key("k", b"2"))))
    conn.commit()
    assert orders(file) == 1
    assert await counts(sqlite_store) == {"ready": 1}


async def test_the_users_factories_do_not_matter(sqlite_store: SqliteStore, conn: sqlite3.Connection):
    conn.row_factory = lambda cursor, row: {"row": row}  # type: ignore[assignment]
    conn.text_factory = bytes
    made, id = one()
    sqlite_store.enqueue_in(conn, made)
    assert conn.text_factory is bytes
    conn.commit()
    assert await state(sqlite_store, id) is JobState.READY


async def test_completion_commits_or_rolls_back_with_the_users_writes(
    sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path
):
    [id] = await put(sqlite_store)
    lease = await take(sqlite_store)
    conn.execute("insert into orders values (1)")
    assert sqlite_store.settle_in(conn, lease.token, [(0, DONE)]) == frozenset()
    conn.rollback()
    assert await state(sqlite_store, id) is JobState.RUNNING
    conn.execute("insert into orders values (1)")
    assert await sqlite_store.asettle_in(conn, lease.token, [(0, DONE)]) == frozenset()
    conn.commit()
    assert await state(sqlite_store, id) is JobState.DONE
    assert orders(file) == 1
    assert sqlite_store.settle_in(conn, lease.token, [(0, DONE)]) == {0}
    conn.rollback()


async def test_in_no_transaction(sqlite_store: SqliteStore, file: Path):
    conn = sqlite3.connect(file, isolation_level=None)
    with pytest.raises(BadTransaction, match="BEGIN IMMEDIATE"):
        sqlite_store.enqueue_in(conn, one()[0])
    conn.execute("begin")
    made, id = one()
    sqlite_store.enqueue_in(conn, made)
    conn.execute("commit")
    conn.close()
    assert await state(sqlite_store, id) is JobState.READY


async def test_another_file(sqlite_store: SqliteStore, tmp_path: Path):
    for place in (tmp_path / "other.db", ":memory:"):
        conn = sqlite3.connect(place)
        with pytest.raises(BadTransaction, match="span two files"):
            sqlite_store.enqueue_in(conn, one()[0])
        conn.close()


def test_a_file_without_our_tables(tmp_path: Path):
    conn = sqlite3.connect(tmp_path / "fresh.db")
    conn.execute("create table orders (id integer primary key)")
    with pytest.raises(SchemaMismatch, match="run `headrace migrate --store sqlite:///"):
        SqliteStore(f"sqlite:///{tmp_path}/fresh.db").enqueue_in(conn, one()[0])
    conn.close()


async def test_a_closed_connection(sqlite_store: SqliteStore, conn: sqlite3.Connection):
    conn.close()
    with pytest.raises(BadTransaction, match="closed"):
        sqlite_store.enqueue_in(conn, one()[0])


async def test_a_transaction_that_began_to_read_before_others_wrote(
    sqlite_store: SqliteStore, conn: sqlite3.Connection
):
    conn.execute("begin")
    conn.execute("select * from orders").fetchall()
    await put(sqlite_store)
    with pytest.raises(Unavailable, match="begin with BEGIN IMMEDIATE"):
        sqlite_store.enqueue_in(conn, one()[0])
    conn.rollback()


@pytest.mark.parametrize("tx", [object(), 7, None, b"default"])
async def test_things_that_are_no_connection(sqlite_store: SqliteStore, tx: object):
    with pytest.raises(BadTransaction, match="must be a sqlite3"):
        sqlite_store.enqueue_in(tx, one()[0])
    with pytest.raises(BadTransaction, match="must be a sqlite3"):
        await sqlite_store.aenqueue_in(tx, one()[0])


async def test_a_waiter_hears_of_the_commit(sqlite_store: SqliteStore, conn: sqlite3.Connection):
    waiting = asyncio.ensure_future(sqlite_store.wait(("default",), 60))
    await asyncio.sleep(0)
    sqlite_store.enqueue_in(conn, one()[0])
    conn.commit()
    assert await waiting
    assert await claim(sqlite_store) is not None


# ── aiosqlite ────────────────────────────────────────────────────────────────


async def test_aiosqlite(sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path):
    (made, id), (other, gone) = one(), one()
    async with aiosqlite.connect(file) as theirs:
        await theirs.execute("insert into orders values (1)")
        await sqlite_store.aenqueue_in(theirs, made)
        assert await state(sqlite_store, id) is None
        assert await sqlite_store.afollowed_in(theirs, [id]) == [Predecessor()]
        await theirs.commit()
        await sqlite_store.aenqueue_in(theirs, other)
        await theirs.rollback()
        with pytest.raises(BadTransaction, match="sync call"):
            sqlite_store.enqueue_in(theirs, one()[0])
    assert await state(sqlite_store, id) is JobState.READY
    assert await state(sqlite_store, gone) is None
    async with aiosqlite.connect(file, isolation_level=None) as theirs:
        with pytest.raises(BadTransaction, match="BEGIN IMMEDIATE"):
            await sqlite_store.aenqueue_in(theirs, one()[0])


# ── SQLAlchemy ───────────────────────────────────────────────────────────────


async def test_sqlalchemy_connection(sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path):
    (made, id), (other, gone), (third, kept) = one(), one(), one()
    engine = sa.create_engine(f"sqlite:///{file}")
    with engine.begin() as theirs:
        theirs.execute(sa.text("insert into orders values (1)"))
        sqlite_store.enqueue_in(theirs, made)
        assert sqlite_store.followed_in(theirs, [id]) == [Predecessor()]
    with engine.connect() as theirs:
        sqlite_store.enqueue_in(theirs, other)
        theirs.rollback()
        sqlite_store.enqueue_in(theirs, third)
        theirs.commit()
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as theirs,
        pytest.raises(BadTransaction, match="BEGIN IMMEDIATE"),
    ):
        sqlite_store.enqueue_in(theirs, one()[0])
    engine.dispose()
    assert [await state(sqlite_store, x) for x in (id, gone, kept)] == [JobState.READY, None, JobState.READY]
    assert orders(file) == 1


async def test_sqlalchemy_session(sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path):
    (made, id), (other, gone), (third, kept) = one(), one(), one()
    engine = sa.create_engine(f"sqlite:///{file}")
    with Session(engine) as session, session.begin():
        sqlite_store.enqueue_in(session, made)
        assert sqlite_store.followed_in(session, [id]) == [Predecessor()]
        session.execute(sa.text("insert into orders values (1)"))
    with Session(engine) as session:
        await sqlite_store.aenqueue_in(session, other)
    registry = scoped_session(sessionmaker(engine))
    sqlite_store.enqueue_in(registry, third)
    registry.commit()
    registry.remove()
    engine.dispose()
    assert [await state(sqlite_store, x) for x in (id, gone, kept)] == [JobState.READY, None, JobState.READY]
    assert orders(file) == 1


async def test_sqlalchemy_async(sqlite_store: SqliteStore, conn: sqlite3.Connection, file: Path):
    (made, id), (other, gone), (third, kept) = one(), one(), one()
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(sa.text("insert into orders values (1)"))
        await sqlite_store.aenqueue_in(session, made)
        assert await sqlite_store.afollowed_in(session, [id]) == [Predecessor()]
        with pytest.raises(BadTransaction, match="sync call"):
            sqlite_store.enqueue_in(session, one()[0])
        with pytest.raises(BadTransaction, match="sync call"):
            sqlite_store.enqueue_in(session.sync_session, one()[0])
    async with engine.connect() as theirs:
        await sqlite_store.aenqueue_in(theirs, other)
        await theirs.rollback()
        await sqlite_store.aenqueue_in(theirs, third)
        await theirs.commit()
    await engine.dispose()
    assert [await state(sqlite_store, x) for x in (id, gone, kept)] == [JobState.READY, None, JobState.READY]
    assert orders(file) == 1


async def test_sqlalchemy_to_another_kind_of_database(sqlite_store: SqliteStore):
    engine: Any = sa.create_mock_engine("postgresql+psycopg://", lambda *_: None)
    fake = type("Connection", (), {"__module__": "sqlalchemy.engine.base", "dialect": engine.dialect})()
    with pytest.raises(BadTransaction, match="to postgresql"):
        sqlite_store.enqueue_in(fake, one()[0])


# ── Django ───────────────────────────────────────────────────────────────────


def django_db() -> Any:
    """Django has no types."""
    return importlib.import_module("django.db")


@pytest.fixture
def django_connection(file: Path, conn: sqlite3.Connection) -> Generator[Any]:
    """Django's own connection to the file, under the alias "jobs"."""
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    connections = django_db().connections
    default = connections.databases["default"]
    connections.databases["jobs"] = {**default, "ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    yield connections["jobs"]
    connections["jobs"].close()
    del connections["jobs"]
    del connections.databases["jobs"]


async def test_django(sqlite_store: SqliteStore, django_connection: Any, file: Path):
    atomic = django_db().transaction.atomic
    (made, id), (other, gone), (third, kept) = one(), one(), one()

    def use() -> None:
        with atomic(using="jobs"):
            django_connection.cursor().execute("insert into orders values (1)")
            sqlite_store.enqueue_in("jobs", made)
            assert sqlite_store.followed_in("jobs", [id]) == [Predecessor()]
        with atomic(using="jobs"):
            sqlite_store.enqueue_in(django_connection, other)
            django_connection.set_rollback(True)
        with atomic(using="jobs"), atomic(using="jobs"):
            sqlite_store.enqueue_in(django_connection, third)
        with pytest.raises(BadTransaction, match="with transaction"):
            sqlite_store.enqueue_in("jobs", one()[0])
        with pytest.raises(BadTransaction, match="no connection of that name"):
            sqlite_store.enqueue_in("nobody", one()[0])
        django_connection.close()

    # Django refuses to work in a thread that runs an event loop.
    await asyncio.to_thread(_in_own_thread, django_connection, use)
    assert [await state(sqlite_store, x) for x in (id, gone, kept)] == [JobState.READY, None, JobState.READY]
    assert orders(file) == 1


def _in_own_thread(connection: Any, use: Any) -> None:
    django_db().connections["jobs"] = connection
    connection.inc_thread_sharing()
    try:
        use()
    finally:
        connection.dec_thread_sharing()


async def test_an_alias_without_django(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "django")
    with pytest.raises(BadTransaction, match="Django is not in use"):
        sqlite_store.enqueue_in("default", one()[0])
