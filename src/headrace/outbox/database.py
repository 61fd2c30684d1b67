"""The relay's own connection to the database of the outbox: a session while it relays, with transactions in it."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
)
from importlib import import_module
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from headrace.errors import BadTransaction, ConfigError
from headrace.store.tx import comes_from, django_connection

Rows = list[Sequence[Any]]
Statement = tuple[str, tuple[Any, ...]]
Execute = Callable[[str, tuple[Any, ...]], Awaitable[Rows]]
"""Run a statement, and return its rows."""

_Now = Callable[[str, tuple[Any, ...]], Rows]
"""The same for a sync driver."""
_Begin = Callable[[], AbstractContextManager[_Now]]
"""Begin a transaction of a sync driver. Leaving it commits; leaving it by an error rolls back."""

_PATIENCE: Final = 10.0
"""Seconds to wait for a connection, or for SQLite's write lock."""
_LONGEST: Final = 60.0
"""Seconds that a statement may take."""


class Session(Protocol):
    """A connection, or one of a pool."""

    async def ask(self, *statements: Statement) -> Rows:
        """Run all of these in one transaction, without a turn of the event loop between them. Returns the last rows.

        All writers share the lock of a SQLite file. User code that blocks the loop while it waits for the lock must not
        wait for a relay that waits for the loop.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Execute]:
        """Leaving it commits; leaving it by an error rolls back."""
        ...


class Database(Protocol):
    """The database that holds the table."""

    async def dialect(self) -> str: ...

    def session(self) -> AbstractAsyncContextManager[Session]: ...

    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of its driver when the database cannot be reached."""
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
        return _SqliteFile(_on_disk(unquote(urlsplit(str(given)).path[1:])))
    if scheme in {"postgresql", "postgres"}:
        return _PostgresUrl(str(given))
    raise ConfigError(
        "an outbox is a table in your own database: give its postgresql:// or sqlite:/// URL, "
        "a SQLAlchemy engine, or a Django alias"
    )


def _on_disk(path: str | None) -> str:
    if not path or path == ":memory:":
        raise ConfigError(
            "an outbox in memory is visible to no other connection, not even to the relay: give a file, e.g. sqlite:///business.db"
        )
    return path


# ── sync drivers ─────────────────────────────────────────────────────────────


class _InThread(ABC):
    """Each session has a thread of its own, because drivers keep state by thread and must not block the event loop."""

    @abstractmethod
    def connected(self) -> AbstractContextManager[_Begin]: ...

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        with ThreadPoolExecutor(1, thread_name_prefix="headrace-outbox") as thread:
            session, connection = _ThreadSession(thread), ExitStack()
            try:
                session.begin = await session.call(connection.enter_context, self.connected())
                yield session
            finally:
                await session.call(connection.close)


class _ThreadSession:
    begin: _Begin

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread

    def call(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def ask(self, *statements: Statement) -> Rows:
        rows: Rows = await self.call(self._all_of, statements)
        return rows

    def _all_of(self, statements: Sequence[Statement]) -> Rows:
        with self.begin() as execute:
            return _last_of(execute, statements)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Execute]:
        # The thread runs one call after the other, so a cancelled statement has ended before the rollback begins.
        stack = ExitStack()
        try:
            execute: _Now = await self.call(stack.enter_context, self.begin())
            yield lambda sql, args: self.call(execute, sql, args)
        except BaseException as error:
            await self.call(stack.__exit__, type(error), error, error.__traceback__)
            raise
        await self.call(stack.__exit__, None, None, None)


def _last_of(execute: _Now, statements: Sequence[Statement]) -> Rows:
    rows: Rows = []
    for sql, args in statements:
        rows = execute(sql, args)
    return rows


class _SqliteFile(_InThread):
    def __init__(self, path: str) -> None:
        self._path = path

    async def dialect(self) -> str:
        return "sqlite"

    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    @contextmanager
    def connected(self) -> Generator[_Begin]:
        with closing(sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)) as connection:
            yield lambda: _sqlite_transaction(connection)


@contextmanager
def _sqlite_transaction(connection: sqlite3.Connection) -> Generator[_Now]:
    connection.execute("begin")
    with connection:
        yield lambda sql, args: connection.execute(sql, args).fetchall()


class _DjangoAlias(_InThread):
    def __init__(self, alias: str) -> None:
        self._alias = alias

    async def dialect(self) -> str:
        return str(django_database(self._alias).vendor)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("django.db").Error, OSError)

    @contextmanager
    def connected(self) -> Generator[_Begin]:
        # Django keeps a connection per thread and does not close that of a thread it did not start.
        wrapper = django_database(self._alias)
        try:
            yield lambda: self._transaction(wrapper)
        finally:
            wrapper.close()

    @contextmanager
    def _transaction(self, wrapper: Any) -> Generator[_Now]:
        with import_module("django.db").transaction.atomic(using=self._alias), wrapper.cursor() as cursor:

            def execute(sql: str, args: tuple[Any, ...]) -> Rows:
                cursor.execute(sql.replace("%", "%%").replace("?", "%s"), args)
                return cursor.fetchall() if cursor.description else []

            yield execute


class _AnyEngine:
    def __init__(self, engine: Any) -> None:
        if engine.dialect.name == "sqlite":
            _on_disk(engine.url.database)
        self._engine = engine

    async def dialect(self) -> str:
        return str(self._engine.dialect.name)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("sqlalchemy.exc").SQLAlchemyError, OSError)


class _Engine(_AnyEngine, _InThread):
    @contextmanager
    def connected(self) -> Generator[_Begin]:
        yield self._transaction

    @contextmanager
    def _transaction(self) -> Generator[_Now]:
        with self._engine.begin() as connection:
            yield lambda sql, args: alchemy_rows(connection, sql, args)


# ── async drivers ────────────────────────────────────────────────────────────


class _AsyncEngine(_AnyEngine):
    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        yield self

    async def ask(self, *statements: Statement) -> Rows:
        def all_of(connection: Any) -> Rows:
            return _last_of(lambda sql, args: alchemy_rows(connection, sql, args), statements)

        async with self._engine.begin() as connection:
            rows: Rows = await connection.run_sync(all_of)
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Execute]:
        async with self._engine.begin() as connection:
            yield lambda sql, args: connection.run_sync(alchemy_rows, sql, args)


def alchemy_rows(connection: Any, sql: str, args: tuple[Any, ...]) -> Rows:
    result = connection.exec_driver_sql(spelled(sql, connection.dialect), args)
    return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


class _PostgresUrl:
    def __init__(self, url: str) -> None:
        self._url = url

    async def dialect(self) -> str:
        return "postgresql"

    def errors(self) -> tuple[type[Exception], ...]:
        asyncpg = import_module("asyncpg")
        return (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        connection: Any = await import_module("asyncpg").connect(
            self._url, statement_cache_size=0, timeout=_PATIENCE, command_timeout=_LONGEST
        )
        try:
            yield _AsyncpgSession(connection)
        finally:
            try:
                await connection.close(timeout=_PATIENCE)
            except self.errors():
                connection.terminate()


class _AsyncpgSession:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, *statements: Statement) -> Rows:
        rows: Rows = []
        async with self._connection.transaction():
            for sql, args in statements:
                rows = await self._execute(sql, args)
        return rows

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Execute]:
        async with self._connection.transaction():
            yield self._execute

    async def _execute(self, sql: str, args: tuple[Any, ...]) -> Rows:
        return [tuple(row) for row in await self._connection.fetch(numbered(sql), *args)]


def django_database(tx: Any) -> Any:
    """Django's connection of this alias. A connection is returned as it is."""
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
