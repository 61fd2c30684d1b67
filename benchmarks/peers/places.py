"""The servers of a run, one of each kind for all contestants, and a database of its own for each of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from headrace.bench.stand import Stand
from headrace.store import connect
from servers.postgres import PostgresServer
from servers.redis import RedisServer

Kind = Literal["redis", "postgres", "sqlite"]
KINDS: Final[tuple[Kind, ...]] = ("redis", "postgres", "sqlite")

SQLITE: Final = "sqlite:///"

_DATABASES: Final = 64
_COMMANDS: Final = "total_commands_processed:"
_SETTLED: Final = 2.0
_REPORTED: Final = 11.0
"""A session of PostgreSQL that has become idle reports what it did within ten seconds."""
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
    calls: Callable[[str], int] | None = None
    """How many commands the server has carried out, or how many transactions the database of this URL has seen."""
    counted_after: float = 0.0
    """Seconds after which a worker is idle, and its calls until then are counted."""
    counts_all: bool = False
    """Whether these are the calls of all contestants."""
    temp_bytes: Callable[[str], int] | None = None
    """Bytes that the server has written to temporary files for the database of this URL."""


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

    def calls(_: str) -> int:
        (line,) = (each for each in server.command("INFO", "stats").splitlines() if each.startswith(_COMMANDS))
        return int(line.removeprefix(_COMMANDS))

    return Place("redis", version, said, lambda: server.url(next(databases)), calls, _SETTLED, counts_all=True)


def _postgres(server: PostgresServer, where: str) -> Place:
    def fresh() -> str:
        url = server.create_database()
        asyncio.run(_migrate(url))
        return url

    def count(what: str, url: str) -> int:
        return int(server.psql(f"select {what} from pg_stat_database where datname = '{urlsplit(url).path[1:]}'"))

    said = ", ".join(f"{name}={server.psql(f'show {name}')}" for name in _SETTINGS) + where
    return Place(
        "postgres",
        f"PostgreSQL {server.version}",
        said,
        fresh,
        lambda url: count("xact_commit + xact_rollback", url),
        _REPORTED,
        temp_bytes=lambda url: count("temp_bytes", url),
    )


async def _migrate(url: str) -> None:
    """Set up headrace's schema. The databases of the peers have it, too, and it costs them nothing."""
    store = connect(url)
    await store.migrate()
    await store.close()
