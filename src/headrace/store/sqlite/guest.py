"""The user's own transaction: what `tx=` may be, and a verb's work inside it.

Libraries are recognised by the names of their classes, never imported.
"""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import BadTransaction
from headrace.store.sqlite.address import Address
from headrace.store.sqlite.connection import translate_guest
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.thread import Now, T, Work

_KINDS = (
    "a sqlite3 or aiosqlite connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
    "or a Django connection or its alias"
)


def run(tx: object, work: Work[T], address: Address, now: Now) -> tuple[T, set[str]]:
    """In the caller's thread. Answers also the queues that have something to claim once the user commits."""
    return _run_on(_sync_connection(tx), work, address, now)


async def arun(tx: object, work: Work[T], address: Address, now: Now) -> tuple[T, set[str]]:
    """Where the connection lives: in its own thread if it has one."""
    raw = await _async_connection(tx)
    if raw is None:
        return run(tx, work, address, now)
    execute = getattr(raw, "_execute", None)
    if execute is None:
        raise BadTransaction("this version of aiosqlite is not supported as tx=: use another one, or sqlite3 itself")
    answer: tuple[T, set[str]] = await execute(_run_on, raw._conn, work, address, now)  # noqa: SLF001 - its thread is the only place where the connection may be used
    return answer


def _run_on(conn: sqlite3.Connection, work: Work[T], address: Address, now: Now) -> tuple[T, set[str]]:
    try:
        _check_file(conn, address)
        if not conn.in_transaction:
            _begin(conn)
        cur = conn.cursor()
        cur.row_factory = None
        tx = Tx(cur, now())
        with _text_as_str(conn), _undone_on_error(cur):
            result = work(tx)
            tx.depth.write(cur)
    except sqlite3.Error as error:
        raise translate_guest(error, address) from error
    return result, tx.depth.awake


def _begin(conn: sqlite3.Connection) -> None:
    if conn.isolation_level is None or getattr(conn, "autocommit", -1) is True:
        raise BadTransaction(
            "the connection given as tx= is in no transaction and would commit at once: "
            "execute BEGIN IMMEDIATE first, and commit when your own writes are done"
        )
    # sqlite3 would begin by itself, but only at the first write and without the write lock.
    conn.execute("begin immediate")


def _check_file(conn: sqlite3.Connection, address: Address) -> None:
    cur = conn.cursor()
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


# ── recognising ──────────────────────────────────────────────────────────────


def _is(value: object, library: str, *names: str) -> bool:
    return any(kind.__module__.partition(".")[0] == library and kind.__name__ in names for kind in type(value).__mro__)


def _sync_connection(tx: Any) -> sqlite3.Connection:
    if isinstance(tx, sqlite3.Connection):
        return tx
    if isinstance(tx, str):
        return _django(_django_alias(tx))
    if _is(tx, "django", "BaseDatabaseWrapper", "ConnectionProxy"):
        return _django(tx)
    if _is(tx, "sqlalchemy", "scoped_session"):
        tx = tx()
    if _is(tx, "sqlalchemy", "Session"):
        tx = tx.connection()
    if _is(tx, "sqlalchemy", "Connection"):
        _check_dialect(tx)
        if not tx.in_transaction():
            tx.exec_driver_sql("select 1")  # begins SQLAlchemy's own transaction, without which its commit does nothing
        return _raw(tx.connection.driver_connection)
    if _is(tx, "sqlalchemy", "AsyncSession", "AsyncConnection", "async_scoped_session") or _is(
        tx, "aiosqlite", "Connection"
    ):
        raise BadTransaction("an async connection cannot be used by a sync call: await the a-method, e.g. aenqueue")
    raise BadTransaction(f"tx= is {type(tx).__name__}; here it must be {_KINDS}")


async def _async_connection(tx: Any) -> Any | None:
    """The aiosqlite connection behind an async object; None: it is a sync one."""
    if _is(tx, "aiosqlite", "Connection"):
        return tx
    if _is(tx, "sqlalchemy", "async_scoped_session"):
        tx = tx()
    if _is(tx, "sqlalchemy", "AsyncSession"):
        tx = await tx.connection()
    if not _is(tx, "sqlalchemy", "AsyncConnection"):
        return None
    _check_dialect(tx)
    if not tx.in_transaction():
        await tx.exec_driver_sql("select 1")
    raw = (await tx.get_raw_connection()).driver_connection
    if not _is(raw, "aiosqlite", "Connection"):
        raise BadTransaction(f"tx= speaks to SQLite by {type(raw).__module__}; here it must be aiosqlite")
    return raw


def _raw(conn: Any) -> sqlite3.Connection:
    if not isinstance(conn, sqlite3.Connection):
        if _is(conn, "aiosqlite", "Connection"):
            raise BadTransaction("an async connection cannot be used by a sync call: await the a-method, e.g. aenqueue")
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
    connections: Any = importlib.import_module("django.db").connections
    try:
        return connections[alias]
    except connections.exception_class:
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
