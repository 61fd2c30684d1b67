"""An arena: the same kind of store again and again, empty each time, for tests that need many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from headrace.store import connect
from headrace.testing.redis_servers import RedisServer
from headrace.testing.servers import PostgresServer
from http_stand import HttpStand, hand_over_clocks

Arena = Callable[[], str]
"""The URL of an empty store; what the one before held is gone."""


@pytest.fixture
def arena(store_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if store_name == "memory":
        yield lambda: "memory://"
    elif store_name == "sqlite":
        numbers = count()
        yield lambda: _migrated(f"sqlite:///{tmp_path}/{next(numbers)}.db")
    elif store_name == "http":
        stand: HttpStand = request.getfixturevalue("http_server")
        hand_over_clocks(stand, request.getfixturevalue("monkeypatch"))
        yield stand.fresh
        stand.clear()
    elif store_name in {"redis", "valkey"}:
        redis: RedisServer = request.getfixturevalue(f"{store_name}_server")
        yield lambda: _flushed(redis)
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_database(template=request.getfixturevalue("postgres_template"))
        with asyncio.Runner() as runner:
            # What a fresh schema holds (its version, its partitions) must stay; the rest starts empty.
            tables = runner.run(_empty_tables(url))
            yield lambda: runner.run(_emptied(url, tables))
        server.drop_database(url)


def _flushed(server: RedisServer) -> str:
    server.command("FLUSHALL")
    return server.url()


def _migrated(url: str) -> str:
    async def migrate() -> None:
        store = connect(url)
        await store.migrate()
        await store.close()

    with asyncio.Runner() as runner:
        runner.run(migrate())
    return url


async def _empty_tables(url: str) -> list[str]:
    import asyncpg

    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select tablename from pg_tables where schemaname = 'headrace'")
    names = [f'headrace."{row[0]}"' for row in rows]
    empty = [name for name in names if not await connection.fetchval(f"select exists(select from {name})")]
    await connection.close()
    return empty


async def _emptied(url: str, tables: list[str]) -> str:
    import asyncpg

    connection = await asyncpg.connect(url)
    # Deleting a few rows is much quicker than truncating, which makes new files.
    await connection.execute(";".join(f"delete from {table}" for table in tables))
    await connection.close()
    return url
