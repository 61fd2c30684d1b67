"""The floor of SQLite: executemany in one transaction per batch, and a plain select for the jobs that end."""

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
    lo integer primary key, hi integer not null, state text not null, attempt integer not null,
    failures integer not null, crashes integer not null, finished_at integer not null, result blob, note text
);
"""


_LAST_JOB = "select max(key) from headrace_bench_job"
_LAST_DONE = "select (select hi from headrace_bench_done order by lo desc limit 1)"
_PAGES = ("page_count", "freelist_count", "page_size")


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

    async def stored(self) -> int:
        with closing(self._connect()) as connection:
            connection.execute("pragma wal_checkpoint(truncate)").fetchone()
            pages, free, size = (int(connection.execute(f"pragma {name}").fetchone()[0]) for name in _PAGES)
        return (pages - free) * size

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
        for size, first in self._batches(_LAST_JOB, count, batch):
            rows = ((first + i, "default", 0, "", 0, None, "bench.noop", PAYLOAD, None) for i in range(size))
            self._connection.executemany(statement, rows)

    async def done(self, count: int, batch: int) -> None:
        read = "select key, task, payload, options from headrace_bench_job where key > ? order by key limit ?"
        statement = "insert into headrace_bench_done values (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        last = 0
        for size, first in self._batches(_LAST_DONE, count, batch):
            jobs = self._connection.execute(read, (last, size)).fetchall()
            # Behind the last job it begins again: what is read does not matter, only how much.
            last = jobs[-1][0] if len(jobs) == size else 0
            now = time.time_ns() // 1000
            self._connection.execute(statement, (first, first + size - 1, "done", 1, 0, 0, now, None, None))

    def _batches(self, last_key: str, count: int, batch: int) -> Iterator[tuple[int, int]]:
        """(size, first free key) of each batch, inside its transaction."""
        for size in sizes(count, batch):
            self._turn.take()
            self._connection.execute("begin immediate")
            last = self._connection.execute(last_key).fetchone()[0]
            yield size, (last or 0) + 1
            self._connection.execute("commit")
            self._turn.leave()
