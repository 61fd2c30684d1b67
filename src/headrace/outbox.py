"""The outbox: jobs for a store that cannot join your SQL transaction, written into a table that can.

    outbox = Outbox("postgresql://…")        # or sqlite:///…, a SQLAlchemy engine, a Django alias
    outbox.enqueue_in(tx, batch)             # commits or rolls back with your own writes
    await outbox.run(store)                  # in any worker: moves what is committed into the store

A call is one row. The relay reads rows, enqueues each under the batch id that it was written with, then deletes it:
at least once as a delivery and, because a batch that is there already changes nothing, exactly once as jobs.
Whoever crashes in between leaves the row to the next relay. Several relays may run at once.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from headrace.errors import BadTransaction, ConfigError, EnqueueError, StoreError
from headrace.job import Batch, BatchId, Due, Key, NewJob
from headrace.lane import Lane
from headrace.store.contract import Enqueued, Store

TABLE: Final = "headrace_outbox"

POSTGRES: Final = f"""
create table if not exists {TABLE} (
    batch varchar(32) primary key,
    jobs bytea not null,
    written_at timestamptz not null default now(),
    refused text
)"""
SQLITE: Final = f"""
create table if not exists {TABLE} (
    batch text primary key,
    jobs blob not null,
    written_at real not null default (julianday('now')),
    refused text
) without rowid"""
"""The table, for your own migrations; `Outbox.prepare` makes it, too."""

_INSERT = f"insert into {TABLE} (batch, jobs) values (?, ?)"
_READ = {
    "postgresql": f"select batch, jobs, extract(epoch from clock_timestamp() - written_at) from {TABLE} "
    "where refused is null order by batch limit ?",
    "sqlite": f"select batch, jobs, (julianday('now') - written_at) * 86400 from {TABLE} "
    "where refused is null order by batch limit ?",
}
_DELETE = f"delete from {TABLE} where batch = ?"
_REFUSE = f"update {TABLE} set refused = ? where batch = ?"
_COUNT = f"select count(*) - count(refused), count(refused) from {TABLE}"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_KINDS = (
    "a psycopg, asyncpg, sqlite3 or aiosqlite connection, a SQLAlchemy Session, AsyncSession, Connection or "
    'AsyncConnection, or a Django alias such as "default"'
)

_log = logging.getLogger(__name__)

# ── a call as one row ────────────────────────────────────────────────────────


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """A job on its way. Times are microseconds: a delay counts from when it was written."""

    task: str
    payload: bytes
    queue: str
    priority: int
    tenant: str
    limits: tuple[str, ...]
    options: bytes | None
    delay: int | None
    at: int | None
    key: tuple[str, int, bytes] | None


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[_Kept])


def _row(batch: Batch) -> tuple[str, bytes]:
    return batch.id.hex, _encode([_kept(job) for job in batch.jobs])


def _kept(job: NewJob) -> _Kept:
    lane, due, key = job.lane, job.due, job.key
    return _Kept(
        job.task,
        job.payload,
        lane.queue,
        lane.priority,
        lane.tenant,
        lane.limits,
        job.options,
        due // _MICROSECOND if isinstance(due, timedelta) else None,
        (due - _EPOCH) // _MICROSECOND if isinstance(due, datetime) else None,
        (key.name, key.ttl // _MICROSECOND, key.digest) if key else None,
    )


def _batch(hex: str, jobs: bytes, waited: float) -> Batch:
    lanes: dict[tuple[str, int, str, tuple[str, ...]], Lane] = {}
    made: list[NewJob] = []
    for kept in _decoder.decode(jobs):
        name = (kept.queue, kept.priority, kept.tenant, kept.limits)
        lane = lanes.setdefault(name, Lane(*name))
        key = Key(kept.key[0], timedelta(microseconds=kept.key[1]), kept.key[2]) if kept.key else None
        made.append(NewJob(kept.task, kept.payload, lane, _due(kept, waited), key, kept.options))
    return Batch(BatchId(UUID(hex=hex)), made)


def _due(kept: _Kept, waited: float) -> Due:
    """What is left of a delay after the wait in the table, or the time itself."""
    if kept.at is not None:
        return _EPOCH + timedelta(microseconds=kept.at)
    if kept.delay is None:
        return None
    return max(timedelta(microseconds=kept.delay) - timedelta(seconds=max(0.0, waited)), timedelta(0))


# ── the outbox ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Depth:
    """What is in the table."""

    waiting: int
    refused: int
    """Rows that the store will never take (their key was used with other arguments); `refused` says why."""


class Outbox:
    """A table of jobs in the user's own database, and the relay that empties it."""

    def __init__(self, database: object) -> None:
        self._database = _database(database)

    async def prepare(self) -> None:
        """Make the table where it is missing."""
        ddl = POSTGRES if await self._database.dialect() == "postgresql" else SQLITE
        try:
            await self.depth()
        except self._database.errors():
            # Asked first: a role that may only use the table is refused even "create if not exists".
            await self._database.run([(ddl, ())])

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        """Write a batch inside the user's transaction. What keys made before is known only when it is relayed."""
        if batch.jobs:
            _sync_execute(tx)(_INSERT, _row(batch))
        return Enqueued({})

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        """The same for async connections; takes sync ones, too."""
        if batch.jobs:
            execute = _async_execute(tx)
            if execute is None:
                return self.enqueue_in(tx, batch)
            await execute(_INSERT, _row(batch))
        return Enqueued({})

    async def depth(self) -> Depth:
        [(waiting, refused)] = await self._database.run([(_COUNT, ())])
        return Depth(int(waiting), int(refused))

    async def relay(self, store: Store, limit: int = 100) -> int:
        """Move up to `limit` committed calls into the store. Answers how many it moved."""
        read = _READ[await self._database.dialect()]
        moved = 0
        for hex, jobs, waited in await self._database.run([(read, (limit,))]):
            try:
                await store.enqueue(_batch(hex, bytes(jobs), float(waited)))
            except EnqueueError as error:
                # No repetition will help. It stays where an operator can see it.
                _log.error("outbox: %s is refused: %s", UUID(hex=hex), error)
                await self._database.run([(_REFUSE, (str(error), hex))])
                continue
            await self._database.run([(_DELETE, (hex,))])
            moved += 1
        return moved

    async def run(
        self, store: Store, *, poll: timedelta = timedelta(milliseconds=500), stop: asyncio.Event | None = None
    ) -> None:
        """Relay until `stop` is set (or for ever), through outages of either side."""
        stop = stop or asyncio.Event()
        trouble: tuple[type[Exception], ...] = (StoreError, *self._database.errors())
        pause = poll.total_seconds()
        prepared = False
        while not stop.is_set():
            try:
                if not prepared:
                    await self.prepare()
                    prepared = True
                if await self.relay(store):
                    pause = poll.total_seconds()
                    continue
            except trouble as error:
                pause = min(2 * pause, 10.0)
                _log.warning("outbox: the relay goes on in %.1f s: %s", pause, type(error).__name__)
            else:
                pause = poll.total_seconds()
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                continue


# ── the relay's own way to the database ──────────────────────────────────────

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


def _database(given: object) -> Database:
    module, names = _kin(given)
    if module == "sqlalchemy" and "AsyncEngine" in names:
        return _AsyncEngine(given)
    if module == "sqlalchemy" and "Engine" in names:
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


class _Engine(_InThread):
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def dialect(self) -> str:
        return str(self._engine.dialect.name)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("sqlalchemy.exc").SQLAlchemyError, OSError)

    def run_here(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        with self._engine.begin() as connection:
            return _alchemy_rows(connection, statements)


class _AsyncEngine:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def dialect(self) -> str:
        return str(self._engine.dialect.name)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("sqlalchemy.exc").SQLAlchemyError, OSError)

    async def run(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        async with self._engine.begin() as connection:
            rows: list[Sequence[Any]] = await connection.run_sync(_alchemy_rows, statements)
            return rows


def _alchemy_rows(connection: Any, statements: Sequence[Statement]) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = []
    for sql, args in statements:
        result = connection.exec_driver_sql(_spelled(sql, connection.dialect), args)
        rows = [tuple(row) for row in result.fetchall()] if result.returns_rows else []
    return rows


class _DjangoAlias(_InThread):
    def __init__(self, alias: str) -> None:
        self._alias = alias

    async def dialect(self) -> str:
        return str(_django(self._alias).vendor)

    def errors(self) -> tuple[type[Exception], ...]:
        return (import_module("django.db").Error, OSError)

    def run_here(self, statements: Sequence[Statement]) -> list[Sequence[Any]]:
        # Django keeps a connection per thread; this thread is not its own.
        wrapper = _django(self._alias)
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
                    rows = [tuple(row) for row in await connection.fetch(_numbered(sql), *args)]
                return rows
        finally:
            await connection.close()


# ── the user's transaction ───────────────────────────────────────────────────
# Connections are recognised by the module of their class, so that no driver is imported for it.


def _kin(tx: object) -> tuple[str, set[str]]:
    packages = {"psycopg", "asyncpg", "sqlalchemy", "django", "sqlite3", "aiosqlite"}
    kin = [kind for kind in type(tx).__mro__ if kind.__module__.partition(".")[0] in packages]
    return (kin[0].__module__.partition(".")[0] if kin else "", {kind.__name__ for kind in kin})


def _numbered(sql: str) -> str:
    """`?` as `$1`, `$2` …"""
    head, *rest = sql.split("?")
    return head + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


def _spelled(sql: str, dialect: Any) -> str:
    if dialect.name == "sqlite":
        return sql
    return _numbered(sql) if dialect.driver == "asyncpg" else sql.replace("?", "%s")


def _sync_execute(tx: Any) -> Callable[[str, tuple[Any, ...]], Any]:
    """Run a statement on the user's sync connection, which is inside a transaction; BadTransaction otherwise."""
    module, names = _kin(tx)
    if isinstance(tx, str) or (module == "django" and hasattr(tx, "in_atomic_block")):
        return _on_django(_django(tx) if isinstance(tx, str) else tx)
    if module == "sqlite3" and "Connection" in names:
        if not tx.in_transaction and (tx.isolation_level is None or getattr(tx, "autocommit", -1) is True):
            raise BadTransaction("this connection is in no transaction and would commit at once: execute BEGIN first")
        return tx.execute  # type: ignore[no-any-return]  # sqlite3's own, known only as Any here
    if module == "psycopg" and "Connection" in names:
        _check_psycopg(tx)
        return lambda sql, args: tx.execute(sql.replace("?", "%s"), args)
    if module == "sqlalchemy" and names & {"Session", "scoped_session", "Connection"}:
        connection = tx if "Connection" in names else tx.connection()
        return lambda sql, args: _alchemy_rows(connection, [(sql, args)])
    if _async_execute(tx) is not None:
        raise BadTransaction("an async connection cannot be used by a sync call: await the a-method, e.g. aenqueue")
    raise BadTransaction(f"tx = {type(tx).__module__}.{type(tx).__qualname__} can carry no job: pass {_KINDS}")


def _async_execute(tx: Any) -> Callable[[str, tuple[Any, ...]], Any] | None:
    """The same for an async connection; None: it is not one."""
    module, names = _kin(tx)
    if module == "asyncpg" and names & {"Connection", "PoolConnectionProxy"}:
        if tx.is_closed() or not tx.is_in_transaction():
            raise BadTransaction("this connection is in no transaction: use it inside `async with conn.transaction():`")
        return lambda sql, args: tx.execute(_numbered(sql), *args)
    if module == "psycopg" and "AsyncConnection" in names:
        _check_psycopg(tx)
        return lambda sql, args: tx.execute(sql.replace("?", "%s"), args)
    if module == "aiosqlite" and "Connection" in names:
        if not tx.in_transaction and tx.isolation_level is None:
            raise BadTransaction("this connection is in no transaction and would commit at once: execute BEGIN first")
        return tx.execute  # type: ignore[no-any-return]  # aiosqlite's own
    if module == "sqlalchemy" and names & {"AsyncSession", "async_scoped_session", "AsyncConnection"}:
        return lambda sql, args: _on_async_alchemy(tx, sql, args)
    return None


async def _on_async_alchemy(tx: Any, sql: str, args: tuple[Any, ...]) -> None:
    connection = tx if "AsyncConnection" in _kin(tx)[1] else await tx.connection()
    await connection.run_sync(_alchemy_rows, [(sql, args)])


def _check_psycopg(tx: Any) -> None:
    status = tx.info.transaction_status.name
    if status in {"INERROR", "UNKNOWN"}:
        raise BadTransaction("this transaction has failed already, or its connection is closed: begin anew")
    if tx.autocommit and status == "IDLE":
        raise BadTransaction("this connection is in autocommit: use it inside `with conn.transaction():`")


def _django(alias: str) -> Any:
    try:
        connections: Any = import_module("django.db").connections
        trouble: Any = (connections.exception_class, import_module("django.core.exceptions").ImproperlyConfigured)
    except ModuleNotFoundError:
        raise BadTransaction(f"{alias!r} would be a Django database alias, but Django is not installed") from None
    try:
        return connections[alias]
    except trouble as error:
        raise BadTransaction(f"Django has no database {alias!r}: {error}") from None


def _on_django(wrapper: Any) -> Callable[[str, tuple[Any, ...]], Any]:
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise BadTransaction("Django is in no transaction: use it inside `with transaction.atomic():`")

    def execute(sql: str, args: tuple[Any, ...]) -> None:
        with wrapper.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), args)

    return execute
