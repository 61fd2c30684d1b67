"""Connections to the file, and the errors of headrace for those of SQLite."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import quote

from headrace.errors import (
    BadTransaction,
    ConfigError,
    HeadraceError,
    SchemaMismatch,
    StoreDamaged,
    StoreError,
    StoreFull,
    Unavailable,
)
from headrace.store.sqlite.engine.address import Address

BUSY_TIMEOUT = 30.0
"""Seconds that a call waits for another writer."""
_CHECKPOINT_PAGES = 4000
_PRIMARY = 0xFF
"""SQLite's extended error codes carry the primary one in their low byte."""


class Locked(Unavailable):
    """Another writer has the file."""


class InUse(Locked):
    """The writing thread of the same store uses the connection."""


def connect(address: Address, *, writes: bool) -> sqlite3.Connection:
    """A connection in autocommit mode: transactions begin and end only where the store says so."""
    with _opening(address):
        conn = sqlite3.connect(
            address.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            _configure(conn, address, writes=writes)
        except BaseException:
            conn.close()
            raise
    return conn


def _configure(conn: sqlite3.Connection, address: Address, *, writes: bool) -> None:
    conn.execute(f"pragma synchronous = {address.sync}")
    if address.sync == "full":
        # On macOS, fsync does not make the disk write its own cache. Other systems ignore this.
        conn.execute("pragma fullfsync = on")
    conn.execute("pragma cache_size = -32768")
    conn.execute("pragma temp_store = memory")
    # Every statement has its index. One that SQLite makes by itself would read the whole table for nothing.
    conn.execute("pragma automatic_index = off")
    # Versions before 3.51.3 can damage the file when one connection checkpoints while another commits and resets the log;
    # mapped reads make it worse. Only writers checkpoint, inside their commit, and they take turns.
    conn.execute("pragma mmap_size = 0")
    (encoding,) = conn.execute("pragma encoding").fetchone()
    if encoding != "UTF-8":
        # Payloads travel joined and tenants as bytes: SQLite would read both as text of that encoding.
        raise ConfigError(
            f"{address.path} holds text as {encoding}, headrace needs UTF-8: use a file of its own for jobs, or copy this one "
            "into a new database (sqlite3 old.db .dump | sqlite3 new.db)"
        )
    if writes:
        mode = _turn_log_on(conn, address)
        if mode != "wal":
            raise ConfigError(
                f"{address.path} cannot use a write-ahead log (it stays in mode {mode!r}): use a local disk"
            )
        conn.execute(f"pragma wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        conn.execute("pragma journal_size_limit = 67108864")
    else:
        conn.execute("pragma query_only = on")
        conn.execute("pragma wal_autocheckpoint = 0")


def _turn_log_on(conn: sqlite3.Connection, address: Address) -> str:
    try:
        mode: str = conn.execute("pragma journal_mode = wal").fetchone()[0]
    except sqlite3.OperationalError as error:
        # SQLite needs the file for itself and does not wait, unless the log is on already.
        if error.sqlite_errorcode & _PRIMARY in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise not_ready(address) from error
        raise
    return mode


class _ByName(sqlite3.Cursor):
    """Python 3.12.0 to 3.12.3 take `?1` for a name, and warn of each value that is given by its place."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        return super().execute(sql, _named(parameters) if "?1" in sql else parameters)

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        return super().executemany(sql, map(_named, seq_of_parameters) if "?1" in sql else seq_of_parameters)


def _named(parameters: Sequence[Any]) -> dict[str, Any]:
    return {str(place): value for place, value in enumerate(parameters, start=1)}


_WARNS = (3, 12, 0) <= sys.version_info < (3, 12, 4)


def cursor(conn: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor for the statements of the store, on its own connection or on a user's."""
    return conn.cursor(_ByName) if _WARNS else conn.cursor()


def not_ready(address: Address) -> Locked:
    """The error for a file that cannot get its log and its tables right now."""
    return Locked(
        f"{address.path} is not ready for jobs, and an open transaction keeps headrace from making it so: run "
        f"{_migrate(address)} once before your code uses it, or end that transaction and try again"
    )


def _migrate(address: Address) -> str:
    return f"`headrace migrate --store sqlite:///{quote(str(address.path))}`"


@contextmanager
def _opening(address: Address) -> Generator[None]:
    """Turn errors of SQLite into those of headrace. A file that never was a database is a mistake in the settings."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_NOTADB:
            raise ConfigError(f"{address.path} is no SQLite database: name another file") from error
        raise translate(error, address) from error


def translate(error: sqlite3.Error, address: Address) -> HeadraceError:
    code = getattr(error, "sqlite_errorcode", 0)
    path = address.path
    if code == sqlite3.SQLITE_READONLY_DBMOVED:
        return StoreDamaged(f"{path} was deleted or moved while it was in use: stop everything and restore it")
    match code & _PRIMARY:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Locked(
                f"{path} is locked by another writer for more than {BUSY_TIMEOUT:g} s: "
                "end the transaction that holds it, then try again"
            )
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"no room left to write {path}: free some space on its disk, then try again")
        case sqlite3.SQLITE_READONLY:
            return Unavailable(f"{path} is read-only: change its owner or mode, or the mount's options")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StoreDamaged(f"{path} is damaged: stop everything, copy it, and restore a backup ({error})")
        case sqlite3.SQLITE_CANTOPEN:
            return Unavailable(f"{path} cannot be opened: does it exist, and may this user write in its folder?")
        case sqlite3.SQLITE_IOERR:
            return Unavailable(f"the disk under {path} failed: {error}")
        case _:
            if "no such table: headrace_" in str(error):
                return SchemaMismatch(f"{path} has no headrace tables yet: run {_migrate(address)} once")
            return StoreError(f"SQLite refused: {error}")


def translate_guest(error: sqlite3.Error, address: Address) -> HeadraceError:
    """The same for the user's own connection. Only the user can repeat its transaction."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & _PRIMARY == sqlite3.SQLITE_BUSY:
        return Unavailable(
            "your transaction cannot write, because another one did since it began to read or still does: "
            "roll back, begin with BEGIN IMMEDIATE, and try again"
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return BadTransaction(f"tx= cannot be used here: {error}")
    return translate(error, address)
