"""Identifies the object given as `tx=`: its library, sync or async, and the state of its transaction.

Libraries are recognised by the names of their classes, so that none is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from importlib import import_module
from typing import Any, Final


class Kind(Enum):
    """The library of a connection. The user's object may be a session around it, or an alias."""

    SQLITE3 = auto()
    AIOSQLITE = auto()
    PSYCOPG = auto()
    ASYNC_PSYCOPG = auto()
    ASYNCPG = auto()
    ALCHEMY = auto()
    ASYNC_ALCHEMY = auto()
    DJANGO = auto()


class Standing(Enum):
    """The state of a connection's transaction."""

    READY = auto()
    """Inside a transaction, or the next statement begins one."""
    NONE = auto()
    """Not in a transaction: the next statement would be committed at once."""
    FAILED = auto()
    CLOSED = auto()


ASYNC: Final = frozenset({Kind.AIOSQLITE, Kind.ASYNC_PSYCOPG, Kind.ASYNCPG, Kind.ASYNC_ALCHEMY})

_KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    ("sqlite3", "Connection"): Kind.SQLITE3,
    ("aiosqlite", "Connection"): Kind.AIOSQLITE,
    ("psycopg", "Connection"): Kind.PSYCOPG,
    ("psycopg", "AsyncConnection"): Kind.ASYNC_PSYCOPG,
    ("asyncpg", "Connection"): Kind.ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): Kind.ASYNCPG,
    ("sqlalchemy", "Session"): Kind.ALCHEMY,
    ("sqlalchemy", "scoped_session"): Kind.ALCHEMY,
    ("sqlalchemy", "Connection"): Kind.ALCHEMY,
    ("sqlalchemy", "AsyncSession"): Kind.ASYNC_ALCHEMY,
    ("sqlalchemy", "async_scoped_session"): Kind.ASYNC_ALCHEMY,
    ("sqlalchemy", "AsyncConnection"): Kind.ASYNC_ALCHEMY,
    ("django", "BaseDatabaseWrapper"): Kind.DJANGO,
    ("django", "ConnectionProxy"): Kind.DJANGO,
}


def kind_of(tx: object) -> Kind | None:
    """Found by its class or the nearest known base class. None: unknown. A string is a Django alias."""
    if isinstance(tx, str):
        return Kind.DJANGO
    return next((_KINDS[origin] for origin in _origins(tx) if origin in _KINDS), None)


def comes_from(value: object, library: str, name: str) -> bool:
    """Whether it is an instance of this class of this library."""
    return (library, name) in _origins(value)


def _origins(value: object) -> list[tuple[str, str]]:
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__]


def named(tx: object) -> str:
    """Its class, for messages."""
    return f"{type(tx).__module__}.{type(tx).__qualname__}"


# ── the connection behind it ─────────────────────────────────────────────────


def alchemy_connection(tx: Any) -> Any:
    """The SQLAlchemy Connection of a Session. A Connection is returned as it is."""
    return tx if comes_from(tx, "sqlalchemy", "Connection") else tx.connection()


async def async_alchemy_connection(tx: Any) -> Any:
    """The SQLAlchemy AsyncConnection of an AsyncSession. An AsyncConnection is returned as it is."""
    return tx if comes_from(tx, "sqlalchemy", "AsyncConnection") else await tx.connection()


def ends_with(inside: Any, outer: Any) -> bool:
    """Whether the end of an outer transaction of SQLAlchemy ends this one. None: the outermost one of its session."""
    if inside is None:
        return outer is None or outer.parent is None
    while inside is not None:
        if inside is outer:
            return True
        inside = inside.parent
    return False


def django_connection(tx: Any) -> Any:
    """Django's connection of this alias. A connection is returned as it is.

    ModuleNotFoundError: Django is not installed. LookupError: it has no database of that name.
    """
    if not isinstance(tx, str):
        return tx
    connections: Any = import_module("django.db").connections
    trouble: Any = (connections.exception_class, import_module("django.core.exceptions").ImproperlyConfigured)
    try:
        return connections[tx]
    except trouble as error:
        raise LookupError(str(error)) from error


# ── its transaction ──────────────────────────────────────────────────────────


def sqlite_standing(conn: Any) -> Standing:
    """Of sqlite3 and aiosqlite."""
    at_once = conn.isolation_level is None or getattr(conn, "autocommit", -1) is True
    return Standing.NONE if at_once and not conn.in_transaction else Standing.READY


def psycopg_standing(conn: Any) -> Standing:
    """Of both of its connections."""
    status = conn.info.transaction_status.name
    if status == "INERROR":
        return Standing.FAILED
    if status == "UNKNOWN":
        return Standing.CLOSED
    return Standing.NONE if conn.autocommit and status == "IDLE" else Standing.READY


def asyncpg_standing(conn: Any) -> Standing:
    if conn.is_closed():
        return Standing.CLOSED
    return Standing.READY if conn.is_in_transaction() else Standing.NONE


def django_standing(wrapper: Any) -> Standing:
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        return Standing.NONE
    return Standing.FAILED if wrapper.needs_rollback else Standing.READY
