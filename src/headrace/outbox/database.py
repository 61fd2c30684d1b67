"""The relay's own way to the database that holds the outbox."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from headrace.errors import BadTransaction, ConfigError
from headrace.tx import comes_from, django_connection

Statement = tuple[str, tuple[Any, ...]]


class Database(Protocol):
    """Where the table is."""

    async def dialect(self) -> str: ...

    async def run(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        """In one transaction; answers the rows of the last."""
        ...

    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises when the database cannot be reached."""
        ...


def database_at(given: object) -> Database:
    if comes_from(given, "sqlalchemy", "AsyncEngine"):
        return _AsyncEngine(given)
    if comes_from(given, "sqlalchemy", "Engine"):
        return _Engine(given)
    if isinstance(given, str) and "://" not in given:
        return _DjangoAlias(given)
    scheme = urlsplit(given).scheme if isinstance(given, str) else ""
    if scheme == "sqlite":
        return _SqliteFile(unquote(urlsplit(str(given)).path[1:]))
    if scheme in {"postgresql", "postgres"}:
        return _PostgresUrl(str(given))
    raise ConfigError(
        "an outbox is a table in your own database: give its postgresql:// or sqlite:/// URL, "
        "a SQLAlchemy engine, or a Django alias"
    )


class _InThread(ABC):
    """Sync drivers, each call in a thread."""

    async def run(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        return await asyncio.to_thread(self.run_here, statements)

    @abstractmethod
    def run_here(self, statements: Sequence[Statement]) -> list[Sequence[Any]]: ...


class _SqliteFile(_InThread):
    def __init__(self, path: str) -> None:
        self._path = path

    async def dialect(self) -> str:
        return "sqlite"

    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def run_here(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            rows: list[Sequence[Any]] = []
            for sql, args in statements:
                rows = connection.execute(sql, args).fetchall()
            return rows


class _AnyEngine:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def dialect(self) -> str:
        return str(self._engine.dialect.name)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("sqlalchemy.exc").SQLAlchemyError, OSError)


class _Engine(_AnyEngine, _InThread):
    def run_here(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        with self._engine.begin() as connection:
            return alchemy_rows(connection, statements)


class _AsyncEngine(_AnyEngine):
    async def run(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        async with self._engine.begin() as connection:
            rows: list[Sequence[Any]] = await connection.run_sync(alchemy_rows, statements)
            return rows


def alchemy_rows(connection: Any, statements: Sequence[Statement]) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = []
    for sql, args in statements:
        result = connection.exec_driver_sql(spelled(sql, connection.dialect), args)
        rows = [tuple(row) for row in result.fetchall()] if result.returns_rows else []
    return rows


class _DjangoAlias(_InThread):
    def __init__(self, alias: str) -> None:
        self._alias = alias

    async def dialect(self) -> str:
        return str(django_database(self._alias).vendor)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("django.db").Error, OSError)

    def run_here(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        # Django keeps a connection per thread; this thread is not its own.
        wrapper = django_database(self._alias)
        try:
            with import_module("django.db").transaction.atomic(using=self._alias), wrapper.cursor() as cursor:
                rows: list[Sequence[Any]] = []
                for sql, args in statements:
                    cursor.execute(sql.replace("%", "%%").replace("?", "%s"), args)
                    rows = cursor.fetchall() if cursor.description else []
                return rows
        finally:
            wrapper.close()


class _PostgresUrl:
    def __init__(self, url: str) -> None:
        self._url = url

    async def dialect(self) -> str:
        return "postgresql"

    def errors(self) -> tuple[type[Exception], ...]:
        asyncpg = import_module("asyncpg")
        return (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

    async def run(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        connection: Any = await import_module("asyncpg").connect(self._url, statement_cache_size=0, timeout=10)
        try:
            async with connection.transaction():
                rows: list[Sequence[Any]] = []
                for sql, args in statements:
                    rows = [tuple(row) for row in await connection.fetch(numbered(sql), *args)]
                return rows
        finally:
            await connection.close()


def django_database(tx: Any) -> Any:
    """Django's connection of this alias; a connection is its own."""
    try:
        return django_connection(tx)
    except ModuleNotFoundError:
        raise BadTransaction(f"{tx!r} would be a Django database alias, but Django is not installed") from None
    except LookupError as error:
        raise BadTransaction(f"Django has no database {tx!r}: {error}") from None


# ── a statement's spelling ───────────────────────────────────────────────────


def numbered(sql: str) -> str:
    """`?` as `$1`, `$2` …"""
    head, *rest = sql.split("?")
    return head + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


def spelled(sql: str, dialect: Any) -> str:
    if dialect.name == "sqlite":
        return sql
    return numbered(sql) if dialect.driver == "asyncpg" else sql.replace("?", "%s")
