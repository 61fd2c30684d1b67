"""The floor of PostgreSQL: COPY, one transaction per batch, and a plain select for the jobs that end."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from benchmarks.floors.base import PAYLOAD, Rows, Spent, sizes
from headrace.model.job import new_batch

_POSTGRES_TABLES = """
drop schema if exists headrace_bench cascade;
create schema headrace_bench;
create table headrace_bench.job (
    batch uuid not null, seq int8 not null, enqueued_at timestamptz not null, ord int4 not null,
    priority int2 not null, queue text collate "C" not null, task text collate "C" not null, payload bytea not null,
    tenant text collate "C", lane int8, limits text[] collate "C", options bytea, primary key (batch, ord)
);
create table headrace_bench.done (
    batch uuid not null, finished_at timestamptz not null, ord int4 not null, hi int4, state int2 not null,
    attempt int2 not null, failures int2, crashes int2, result bytea, result_until timestamptz, note text,
    primary key (batch, ord)
);
"""


_INSERT = """
insert into headrace_bench.job (batch, seq, enqueued_at, ord, priority, queue, task, payload)
values ($1, 1, $2, 0, 0, 'default', 'bench.noop', $3)
"""


_READ = """
select batch, ord, enqueued_at, task, payload, options from headrace_bench.job
where (batch, ord) > ($1, $2) order by batch, ord limit $3
"""
_FIRST = (UUID(int=0), 0)
_BLOCK = 32
"""Jobs in one row of ends at most, as in the store."""


_CALLS = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"


_STORED = """
select sum(pg_total_relation_size(c.oid))::int8 from pg_class c
where c.relnamespace = 'headrace'::regnamespace and c.relkind = 'r'
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

    async def stored(self) -> int:
        connection = await self._connect()
        try:
            return int(await connection.fetchval(_STORED))
        finally:
            await connection.close()

    async def spent(self) -> Spent | None:
        return None

    async def calls(self) -> int | None:
        connection = await self._connect()
        try:
            return int(await connection.fetchval(_CALLS))
        finally:
            await connection.close()


class _PostgresRows:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def one(self) -> None:
        # For one row an insert is quicker than COPY: one round trip.
        await self._connection.execute(_INSERT, new_batch(), datetime.now(UTC), PAYLOAD)

    async def jobs(self, count: int, batch: int) -> None:
        columns = ["batch", "seq", "enqueued_at", "ord", "priority", "queue", "task", "payload"]
        for number, size in enumerate(sizes(count, batch)):
            id, now = new_batch(), datetime.now(UTC)
            rows = ((id, number, now, i, 0, "default", "bench.noop", PAYLOAD) for i in range(size))
            await self._copy("job", columns, rows)

    async def done(self, count: int, batch: int) -> None:
        columns = ["batch", "finished_at", "ord", "hi", "state", "attempt"]
        last = _FIRST
        for size in sizes(count, batch):
            read = await self._connection.fetch(_READ, *last, size)
            # Behind the last job it begins again: what is read does not matter, only how much.
            last = (read[-1]["batch"], read[-1]["ord"]) if len(read) == size else _FIRST
            id, now = new_batch(), datetime.now(UTC)
            blocks = ((id, now, lo, min(lo + _BLOCK, size) - 1, 1, 1) for lo in range(0, size, _BLOCK))
            await self._copy("done", columns, blocks)

    async def _copy(self, table: str, columns: list[str], rows: Iterator[tuple[object, ...]]) -> None:
        await self._connection.copy_records_to_table(table, schema_name="headrace_bench", columns=columns, records=rows)
