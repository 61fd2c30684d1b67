"""The raw floor of each engine: what it writes per second without a queue, and what else only the engine can tell.

One class per engine, named in `FLOORS`; everything else in the benchmark asks no store which one it is.
A floor's tables have the shape of the store's own job and history rows: one row of each per job, with its key.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.bench.load import TEXT
from headrace.job import new_batch

PAYLOAD = msgspec.msgpack.encode(([TEXT], {}))


class Rows(Protocol):
    """A connection that writes rows, each call durable when it returns."""

    async def one(self) -> None:
        """Write one job row."""
        ...

    async def jobs(self, count: int, batch: int) -> None:
        """Write `count` job rows, `batch` at a time."""
        ...

    async def done(self, count: int, batch: int) -> None:
        """Write `count` history rows, `batch` at a time."""
        ...


class Floor(Protocol):
    """What an engine does without a queue."""

    async def prepare(self) -> None:
        """Make the tables, empty."""
        ...

    async def drop(self) -> None: ...

    def connection(self) -> AbstractAsyncContextManager[Rows]: ...

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Keep a transaction with a snapshot open."""
        ...

    async def wal(self) -> int | None:
        """Bytes of write-ahead log ever written; None: not told."""
        ...

    async def spent(self) -> Spent | None:
        """What the server has used; None: there is none, or it does not say."""
        ...


class Spent(NamedTuple):
    """What a server has used so far."""

    cpu: float
    """Seconds."""
    memory: int
    """Bytes, right now."""


def of(engine: str, url: str) -> Floor | None:
    """The floor of the engine behind a URL; None: it has none."""
    make = FLOORS.get(engine)
    return None if make is None else make(url)


def _sizes(count: int, batch: int) -> list[int]:
    return [min(batch, count - start) for start in range(0, count, batch)]


# ── SQLite ───────────────────────────────────────────────────────────────────

_SQLITE_TABLES = """
drop table if exists headrace_bench_job;
drop table if exists headrace_bench_done;
create table headrace_bench_job (
    key integer primary key, queue text not null, priority integer not null, tenant text not null,
    lane integer not null, limits text, task text not null, payload blob not null, options blob
);
create table headrace_bench_done (
    key integer primary key, state text not null, attempt integer not null, failures integer not null,
    crashes integer not null, finished_at integer not null, result blob, note text
);
"""


class SqliteFloor:
    """executemany in one transaction per batch, at the durability of the store."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._path = unquote(parts.path[1:])
        self._turn = Path(f"{self._path}-bench")
        self._sync = "normal" if "sync=normal" in parts.query else "full"

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {self._sync}")
        connection.execute("pragma cache_size = -32768")
        connection.execute("pragma wal_autocheckpoint = 4000")
        return connection

    async def prepare(self) -> None:
        self._script(_SQLITE_TABLES)

    async def drop(self) -> None:
        self._script("drop table if exists headrace_bench_job; drop table if exists headrace_bench_done;")
        self._turn.unlink(missing_ok=True)

    def _script(self, script: str) -> None:
        with closing(self._connect()) as connection:
            connection.executescript(script)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Rows]:
        # Two writers that wait in SQLite's busy handler sleep most of the time: that would be too low a floor.
        with closing(self._connect()) as connection, closing(_Turn(self._turn)) as turn:
            yield _SqliteRows(connection, turn)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        with closing(self._connect()) as connection:
            connection.execute("begin")
            connection.execute("select count(*) from sqlite_master").fetchone()
            yield

    async def wal(self) -> int | None:
        return None

    async def spent(self) -> Spent | None:
        return None


class _Turn:
    """Whose turn it is to write."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def take(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def leave(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._file.close()


class _SqliteRows:
    def __init__(self, connection: sqlite3.Connection, turn: _Turn) -> None:
        self._connection = connection
        self._turn = turn

    async def one(self) -> None:
        await self.jobs(1, 1)

    async def jobs(self, count: int, batch: int) -> None:
        statement = "insert into headrace_bench_job values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        for size, first in self._batches("headrace_bench_job", count, batch):
            rows = ((first + i, "default", 0, "", 0, None, "bench.noop", PAYLOAD, None) for i in range(size))
            self._connection.executemany(statement, rows)

    async def done(self, count: int, batch: int) -> None:
        statement = "insert into headrace_bench_done values (?, ?, ?, ?, ?, ?, ?, ?)"
        for size, first in self._batches("headrace_bench_done", count, batch):
            now = time.time_ns() // 1000
            rows = ((first + i, "done", 1, 0, 0, now, None, None) for i in range(size))
            self._connection.executemany(statement, rows)

    def _batches(self, table: str, count: int, batch: int) -> Iterator[tuple[int, int]]:
        """(size, first free key) of each batch, inside its transaction."""
        for size in _sizes(count, batch):
            self._turn.take()
            self._connection.execute("begin immediate")
            last = self._connection.execute(f"select max(key) from {table}").fetchone()[0]
            yield size, (last or 0) + 1
            self._connection.execute("commit")
            self._turn.leave()


# ── PostgreSQL ───────────────────────────────────────────────────────────────

_POSTGRES_TABLES = """
drop schema if exists headrace_bench cascade;
create schema headrace_bench;
create table headrace_bench.job (
    batch uuid not null, seq int8 not null, enqueued_at timestamptz not null, ord int4 not null,
    priority int2 not null, queue text collate "C" not null, task text collate "C" not null, payload bytea not null,
    tenant text collate "C", lane int8, limits text[] collate "C", options bytea, primary key (batch, ord)
);
create table headrace_bench.done (
    batch uuid not null, finished_at timestamptz not null, ord int4 not null, state int2 not null,
    attempt int2 not null, failures int2, crashes int2, result bytea, result_until timestamptz, note text,
    primary key (batch, ord)
);
"""


_INSERT = """
insert into headrace_bench.job (batch, seq, enqueued_at, ord, priority, queue, task, payload)
values ($1, 1, $2, 0, 0, 'default', 'bench.noop', $3)
"""


class PostgresFloor:
    """COPY, one transaction per batch."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def _connect(self) -> Any:
        asyncpg: Any = importlib.import_module("asyncpg")
        return await asyncpg.connect(self._url)

    async def prepare(self) -> None:
        await self._execute(_POSTGRES_TABLES)

    async def drop(self) -> None:
        await self._execute("drop schema if exists headrace_bench cascade")

    async def _execute(self, script: str) -> None:
        connection = await self._connect()
        try:
            await connection.execute(script)
        finally:
            await connection.close()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Rows]:
        connection = await self._connect()
        try:
            yield _PostgresRows(connection)
        finally:
            await connection.close()

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        connection = await self._connect()
        try:
            async with connection.transaction(isolation="repeatable_read"):
                await connection.fetchval("select txid_current()")
                yield
        finally:
            await connection.close()

    async def wal(self) -> int | None:
        connection = await self._connect()
        try:
            return int(await connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
        finally:
            await connection.close()

    async def spent(self) -> Spent | None:
        return None


class _PostgresRows:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def one(self) -> None:
        # For one row an insert is quicker than COPY: one round trip.
        await self._connection.execute(_INSERT, new_batch(), datetime.now(UTC), PAYLOAD)

    async def jobs(self, count: int, batch: int) -> None:
        columns = ["batch", "seq", "enqueued_at", "ord", "priority", "queue", "task", "payload"]
        for number, size in enumerate(_sizes(count, batch)):
            id, now = new_batch(), datetime.now(UTC)
            rows = ((id, number, now, i, 0, "default", "bench.noop", PAYLOAD) for i in range(size))
            await self._copy("job", columns, rows)

    async def done(self, count: int, batch: int) -> None:
        columns = ["batch", "finished_at", "ord", "state", "attempt"]
        for size in _sizes(count, batch):
            id, now = new_batch(), datetime.now(UTC)
            await self._copy("done", columns, ((id, now, i, 1, 1) for i in range(size)))

    async def _copy(self, table: str, columns: list[str], rows: Iterator[tuple[object, ...]]) -> None:
        await self._connection.copy_records_to_table(table, schema_name="headrace_bench", columns=columns, records=rows)


# ── Redis ────────────────────────────────────────────────────────────────────

_REDIS_CLAIM = """
local e = redis.call('LPOP', KEYS[1], ARGV[1])
if not e then return {} end
redis.call('RPUSH', KEYS[2], unpack(e))
redis.call('ZADD', KEYS[3], ARGV[2], KEYS[2])
return e
"""
_REDIS_DONE = """
if redis.call('ZREM', KEYS[2], KEYS[1]) == 0 then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('HSET', KEYS[3], unpack(ARGV))
redis.call('EXPIRE', KEYS[3], 86400, 'NX')
return 1
"""


class RedisFloor:
    """Bare list lanes by the store's own client: RPUSH; LPOP into a lease list; a field per job in a result hash."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def prepare(self) -> None:
        await self.drop()

    async def drop(self) -> None:
        async with self._wire() as wire:
            keys = await wire.command("headrace_bench", "KEYS", "headrace_bench:*")
            if keys:
                await wire.command("headrace_bench", "UNLINK", *keys)

    @asynccontextmanager
    async def _wire(self) -> AsyncGenerator[Any]:
        parse = importlib.import_module("headrace.store.redis.url").parse
        wire = importlib.import_module("headrace.store.redis.wire").make_wire(parse(self._url))
        try:
            yield wire
        finally:
            await wire.close()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Rows]:
        async with self._wire() as wire:
            claim = await wire.command("headrace_bench", "SCRIPT", "LOAD", _REDIS_CLAIM)
            done = await wire.command("headrace_bench", "SCRIPT", "LOAD", _REDIS_DONE)
            yield _RedisRows(wire, claim, done)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        yield  # Redis has no transaction to hold open

    async def wal(self) -> int | None:
        """Bytes of AOF; None: it is off. A rewrite would make it smaller: `auto-aof-rewrite-percentage 0` on the stand."""
        found = await self._info("persistence")
        return int(found["aof_current_size"]) if found.get("aof_enabled") == "1" else None

    async def spent(self) -> Spent | None:
        found = {**await self._info("cpu"), **await self._info("memory")}
        return Spent(float(found["used_cpu_user"]) + float(found["used_cpu_sys"]), int(found["used_memory"]))

    async def _info(self, section: str) -> dict[str, str]:
        async with self._wire() as wire:
            info = (await wire.command("headrace_bench", "INFO", section)).decode()
        return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


class _RedisRows:
    def __init__(self, wire: Any, claim: bytes, done: bytes) -> None:
        self._wire, self._claim, self._done = wire, claim, done

    async def one(self) -> None:
        await self.jobs(1, 1)

    async def jobs(self, count: int, batch: int) -> None:
        for size in _sizes(count, batch):
            prefix = new_batch().bytes[:14]
            elements = [prefix + i.to_bytes(2, "big") + PAYLOAD for i in range(size)]
            await self._wire.command("headrace_bench", "RPUSH", "headrace_bench:ready", *elements)

    async def done(self, count: int, batch: int) -> None:
        left, idle = count, 0
        while left > 0:
            lease = f"headrace_bench:lease:{new_batch().hex}"
            keys = (3, "headrace_bench:ready", lease, "headrace_bench:leases")
            got = await self._wire.command("headrace_bench", "EVALSHA", self._claim, *keys, min(batch, left), 0)
            if not got:
                idle += 1
                if idle > 200:  # nobody produces: results only, under made-up ids
                    got = [new_batch().bytes for _ in range(min(batch, left))]
                    pairs = [part for id in got for part in (id, b"d")]
                    await self._wire.command("headrace_bench", "HSET", "headrace_bench:results", *pairs)
                    left -= len(got)
                else:
                    await asyncio.sleep(0.0005)
                continue
            idle = 0
            pairs = [part for element in got for part in (element[:16], b"d")]
            keys = (3, lease, "headrace_bench:leases", "headrace_bench:results")
            await self._wire.command("headrace_bench", "EVALSHA", self._done, *keys, *pairs)
            left -= len(got)


FLOORS: dict[str, Callable[[str], Floor]] = {
    "sqlite": SqliteFloor,
    "postgres": PostgresFloor,
    "redis": RedisFloor,
}
"""By engine. `memory` has none: there is nothing below it."""
