"""The servers of a run, one of each kind for all contestants, and a database of its own for each of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headrace.bench.stand import Stand
from headrace.store import connect
from servers.postgres import PostgresServer
from servers.redis import RedisServer

Kind = Literal["redis", "postgres", "sqlite"]
KINDS: Final[tuple[Kind, ...]] = ("redis", "postgres", "sqlite")

SQLITE: Final = "sqlite:///"

_DATABASES: Final = 64
_SETTINGS: Final = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True, slots=True)
class Place:
    """One server, or a folder of files."""

    kind: Kind
    version: str
    durability: str
    """The settings that all contestants share."""
    fresh: Callable[[], str]
    """The URL of a database without jobs."""


@contextmanager
def opened(kind: Kind) -> Generator[Place]:
    """Start a server of this kind for the time of the run."""
    folder = Path(tempfile.gettempdir())
    where = ", files in memory" if Stand(kind, str, folder=folder).in_memory else ", files on disk"
    if kind == "redis":
        with RedisServer.start(settings={"databases": str(_DATABASES)}) as server:
            yield _redis(server, where)
    elif kind == "postgres":
        with PostgresServer.start() as postgres:
            yield _postgres(postgres, where)
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-peers-") as own:
            files = iter(range(_DATABASES))
            yield Place(
                kind,
                "",
                f"journal_mode=wal, synchronous=full (Huey: fsync=True){where}",
                lambda: f"{SQLITE}{own}/{next(files)}.db",
            )


def _redis(server: RedisServer, where: str) -> Place:
    def config(name: str) -> str:
        return server.command("CONFIG", "GET", name).replace("\n", "=")

    told = dict(line.split(":", 1) for line in server.command("INFO", "server").splitlines() if ":" in line)
    version = f"Valkey {told['valkey_version']}" if "valkey_version" in told else f"Redis {told['redis_version']}"
    databases = iter(range(_DATABASES))
    said = f"{config('appendonly')}, {config('appendfsync')}{where}"
    return Place("redis", version, said, lambda: server.url(next(databases)))


def _postgres(server: PostgresServer, where: str) -> Place:
    def fresh() -> str:
        url = server.create_database()
        asyncio.run(_migrate(url))
        return url

    said = ", ".join(f"{name}={server.psql(f'show {name}')}" for name in _SETTINGS) + where
    return Place("postgres", f"PostgreSQL {server.version}", said, fresh)


async def _migrate(url: str) -> None:
    """Set up headrace's schema. The databases of the peers have it, too, and it costs them nothing."""
    store = connect(url)
    await store.migrate()
    await store.close()
