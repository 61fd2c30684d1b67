"""The user's transaction: how a statement runs on the connection that was given as `tx=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import BadTransaction
from headrace.outbox.database import alchemy_rows, django_database, numbered
from headrace.store.tx import (
    ASYNC,
    Kind,
    Standing,
    alchemy_connection,
    async_alchemy_connection,
    asyncpg_standing,
    django_standing,
    kind_of,
    named,
    psycopg_standing,
    sqlite_standing,
)

Execute = Callable[[str, tuple[Any, ...]], Any]

_KINDS = (
    "a psycopg, asyncpg, sqlite3 or aiosqlite connection, a SQLAlchemy Session, AsyncSession, Connection or "
    'AsyncConnection, or a Django alias such as "default"'
)


def sync_execute(tx: Any) -> Execute:
    """Run a statement on the user's sync connection, which is inside a transaction; BadTransaction otherwise."""
    kind = kind_of(tx)
    match kind:
        case Kind.DJANGO:
            return _on_django(django_database(tx))
        case Kind.SQLITE3:
            return _on_sqlite(tx)
        case Kind.PSYCOPG:
            return _on_psycopg(tx)
        case Kind.ALCHEMY:
            connection = alchemy_connection(tx)
            return lambda sql, args: alchemy_rows(connection, sql, args)
        case _ if kind in ASYNC:
            raise BadTransaction("an async connection cannot be used by a sync call: await the a-method, e.g. aenqueue")
        case _:
            raise BadTransaction(f"tx = {named(tx)} is not supported: pass {_KINDS}")


def async_execute(tx: Any) -> Execute | None:
    """The same for an async connection; None: it is not one."""
    match kind_of(tx):
        case Kind.ASYNCPG:
            return _on_asyncpg(tx)
        case Kind.ASYNC_PSYCOPG:
            return _on_psycopg(tx)
        case Kind.AIOSQLITE:
            return _on_sqlite(tx)
        case Kind.ASYNC_ALCHEMY:
            return lambda sql, args: _on_async_alchemy(tx, sql, args)
        case _:
            return None


def sync_rows(tx: Any) -> Execute:
    """As `sync_execute`, for a statement that returns rows."""
    execute = sync_execute(tx)
    match kind_of(tx):
        case Kind.ALCHEMY:
            return execute
        case Kind.DJANGO:
            return lambda sql, args: _django_rows(django_database(tx), sql, args)
        case _:
            return lambda sql, args: execute(sql, args).fetchall()


def async_rows(tx: Any) -> Execute | None:
    """As `async_execute`, for a statement that returns rows."""
    execute = async_execute(tx)
    if execute is None:
        return None

    async def rows(sql: str, args: tuple[Any, ...]) -> Any:
        match kind_of(tx):
            case Kind.ASYNCPG:
                return await tx.fetch(numbered(sql), *args)
            case Kind.ASYNC_ALCHEMY:
                return await execute(sql, args)
            case _:
                return await (await execute(sql, args)).fetchall()

    return rows


def _django_rows(wrapper: Any, sql: str, args: tuple[Any, ...]) -> Any:
    with wrapper.cursor() as cursor:
        cursor.execute(sql.replace("?", "%s"), args)
        return cursor.fetchall()


def _on_sqlite(tx: Any) -> Execute:
    if sqlite_standing(tx) is Standing.NONE:
        raise BadTransaction("this connection is not in a transaction and would commit at once: execute BEGIN first")
    execute: Execute = tx.execute
    return execute


def _on_psycopg(tx: Any) -> Execute:
    standing = psycopg_standing(tx)
    if standing in {Standing.FAILED, Standing.CLOSED}:
        raise BadTransaction("this transaction has failed already, or its connection is closed: begin a new one")
    if standing is Standing.NONE:
        raise BadTransaction("this connection is in autocommit: use it inside `with conn.transaction():`")
    return lambda sql, args: tx.execute(sql.replace("?", "%s"), args)


def _on_asyncpg(tx: Any) -> Execute:
    if asyncpg_standing(tx) is not Standing.READY:
        raise BadTransaction("this connection is not in a transaction: use it inside `async with conn.transaction():`")
    return lambda sql, args: tx.execute(numbered(sql), *args)


async def _on_async_alchemy(tx: Any, sql: str, args: tuple[Any, ...]) -> Any:
    connection = await async_alchemy_connection(tx)
    return await connection.run_sync(alchemy_rows, sql, args)


def _on_django(wrapper: Any) -> Execute:
    if django_standing(wrapper) is Standing.NONE:
        raise BadTransaction("Django is not in a transaction: use it inside `with transaction.atomic():`")

    def execute(sql: str, args: tuple[Any, ...]) -> None:
        with wrapper.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), args)

    return execute
