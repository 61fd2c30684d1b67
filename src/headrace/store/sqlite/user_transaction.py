"""The user's own transaction: which connection to the file is behind `tx=`, and a verb's work inside it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import BadTransaction
from headrace.store.sqlite.engine.address import Address
from headrace.store.sqlite.engine.connection import cursor, translate_guest
from headrace.store.sqlite.engine.files import Files
from headrace.store.sqlite.engine.thread import T, Work
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.verbs.wait import Waiting
from headrace.store.tx import (
    Kind,
    Standing,
    alchemy_connection,
    async_alchemy_connection,
    django_connection,
    kind_of,
    sqlite_standing,
)

_KINDS = (
    "a sqlite3 or aiosqlite connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
    "or a Django connection or its alias"
)
_SYNC_CALL = "an async connection cannot be used by a sync call: await the a-method, e.g. aenqueue"


class Host(NamedTuple):
    """The store for which a verb runs in a user's transaction."""

    address: Address
    time: Timekeeper
    files: Files | None
    """Checked before each verb, because workers would not see jobs in a lost file. None: the store is not open."""
    waiting: Waiting | None

    def check(self) -> None:
        if self.files is not None:
            self.files.check()

    def echo(self, awake: set[str]) -> None:
        """Wake what waits for these queues, once the user commits."""
        if awake and self.waiting is not None:
            self.waiting.echo(awake)


def run(tx: object, work: Work[T], host: Host) -> T:
    """In the caller's thread."""
    host.check()
    result, awake = _run_on(_sync_connection(tx), work, host.address, host.time)
    host.echo(awake)
    return result


async def arun(tx: object, work: Work[T], host: Host) -> T:
    """Where the connection lives: in its own thread if it has one."""
    host.check()
    raw = await _async_connection(tx)
    if raw is None:
        return run(tx, work, host)
    execute = getattr(raw, "_execute", None)
    if execute is None:
        raise BadTransaction("this version of aiosqlite is not supported as tx=: use another one, or sqlite3 itself")
    answer: tuple[T, set[str]] = await execute(_run_on, raw._conn, work, host.address, host.time)  # noqa: SLF001 - its thread is the only place where the connection may be used
    result, awake = answer
    host.echo(awake)
    return result


def _run_on(conn: sqlite3.Connection, work: Work[T], address: Address, time: Timekeeper) -> tuple[T, set[str]]:
    """Answers also the queues that have something to claim once the user commits."""
    try:
        _check_file(conn, address)
        if not conn.in_transaction:
            _begin(conn)
        cur = cursor(conn)
        cur.row_factory = None
        with _text_as_str(conn), _undone_on_error(cur):
            tx = Tx(cur, time.read(cur))
            result = work(tx)
            tx.depth.write(cur)
    except sqlite3.Error as error:
        raise translate_guest(error, address) from error
    return result, tx.depth.awake


def _begin(conn: sqlite3.Connection) -> None:
    if sqlite_standing(conn) is Standing.NONE:
        raise BadTransaction(
            "the connection given as tx= is in no transaction and would commit at once: "
            "execute BEGIN IMMEDIATE first, and commit when your own writes are done"
        )
    # sqlite3 would begin by itself, but only at the first write and without the write lock.
    conn.execute("begin immediate")


def _check_file(conn: sqlite3.Connection, address: Address) -> None:
    cur = cursor(conn)
    cur.row_factory = None
    for _, name, file in cur.execute("pragma database_list").fetchall():
        if isinstance(name, bytes):
            name, file = name.decode(), file.decode()  # noqa: PLW2901 - the user's text_factory
        if name == "main":
            if file and Path(file).exists() and address.path.exists() and address.path.samefile(file):
                return
            raise BadTransaction(
                f"the connection given as tx= is to {file or 'a database in memory'}, the jobs are in {address.path}: "
                "a transaction cannot span two files"
            )


@contextmanager
def _text_as_str(conn: sqlite3.Connection) -> Generator[None]:
    before = conn.text_factory
    conn.text_factory = str
    try:
        yield
    finally:
        conn.text_factory = before


@contextmanager
def _undone_on_error(cur: sqlite3.Cursor) -> Generator[None]:
    """A refused verb leaves nothing half-written in a transaction that goes on."""
    cur.execute("savepoint headrace")
    try:
        yield
    except BaseException:
        if cur.connection.in_transaction:
            cur.execute("rollback to headrace")
            cur.execute("release headrace")
        raise
    cur.execute("release headrace")


# ── the connection to the file ───────────────────────────────────────────────


def _sync_connection(tx: Any) -> sqlite3.Connection:
    match kind_of(tx):
        case Kind.SQLITE3:
            return _raw(tx)
        case Kind.DJANGO:
            return _django(_django_alias(tx) if isinstance(tx, str) else tx)
        case Kind.ALCHEMY:
            connection = alchemy_connection(tx)
            _check_dialect(connection)
            if not connection.in_transaction():
                # Begins SQLAlchemy's own transaction, without which its commit does nothing.
                connection.exec_driver_sql("select 1")
            return _raw(connection.connection.driver_connection)
        case Kind.AIOSQLITE | Kind.ASYNC_ALCHEMY:
            raise BadTransaction(_SYNC_CALL)
        case _:
            raise BadTransaction(f"tx= is {type(tx).__name__}; here it must be {_KINDS}")


async def _async_connection(tx: Any) -> Any | None:
    """The aiosqlite connection behind an async object; None: it is a sync one."""
    kind = kind_of(tx)
    if kind is Kind.AIOSQLITE:
        return tx
    if kind is not Kind.ASYNC_ALCHEMY:
        return None
    connection = await async_alchemy_connection(tx)
    _check_dialect(connection)
    if not connection.in_transaction():
        await connection.exec_driver_sql("select 1")
    raw = (await connection.get_raw_connection()).driver_connection
    if kind_of(raw) is not Kind.AIOSQLITE:
        raise BadTransaction(f"tx= speaks to SQLite by {type(raw).__module__}; here it must be aiosqlite")
    return raw


def _raw(conn: Any) -> sqlite3.Connection:
    if not isinstance(conn, sqlite3.Connection):
        if kind_of(conn) is Kind.AIOSQLITE:
            raise BadTransaction(_SYNC_CALL)
        raise BadTransaction(f"tx= speaks to SQLite by {type(conn).__module__}; here it must be Python's own sqlite3")
    return conn


def _check_dialect(conn: Any) -> None:
    if conn.dialect.name != "sqlite":
        raise BadTransaction(
            f"tx= is a connection to {conn.dialect.name}, the jobs are in SQLite: they must share one file"
        )


def _django_alias(alias: str) -> Any:
    if "django" not in sys.modules:
        raise BadTransaction(f"tx={alias!r} names a Django connection, but Django is not in use: pass {_KINDS}")
    try:
        return django_connection(alias)
    except LookupError:
        raise BadTransaction(f"tx={alias!r}: Django has no connection of that name") from None


def _django(wrapper: Any) -> sqlite3.Connection:
    if wrapper.vendor != "sqlite":
        raise BadTransaction(
            f"tx= is a connection to {wrapper.vendor}, the jobs are in SQLite: they must share one file"
        )
    wrapper.ensure_connection()
    conn = _raw(wrapper.connection)
    if not conn.in_transaction:
        raise BadTransaction(
            "tx= is a Django connection in no transaction: call this inside `with transaction.atomic():`"
        )
    return conn
