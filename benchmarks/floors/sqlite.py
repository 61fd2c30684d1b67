"""The floor of SQLite: executemany in one transaction per batch."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchmarks.floors.base import PAYLOAD, Rows, Spent, sizes

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
        # Two writers that wait in SQLite's busy handler sleep most of the time, which would make the floor too low.
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

    async def calls(self) -> int | None:
        return None


class _Turn:
    """Gives the writers turns."""

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
        for size in sizes(count, batch):
            self._turn.take()
            self._connection.execute("begin immediate")
            last = self._connection.execute(f"select max(key) from {table}").fetchone()[0]
            yield size, (last or 0) + 1
            self._connection.execute("commit")
            self._turn.leave()
