"""Throw-away servers to measure: started for a bare name, and gone after the run."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.bench import stand
from headrace.bench.stand import Stand, Stands
from servers.postgres import PostgresServer
from servers.redis import RedisServer


@contextmanager
def _postgres() -> Generator[Stand]:
    with PostgresServer.start() as server:
        yield Stand("postgres", server.create_database, folder=Path(tempfile.gettempdir()))


@contextmanager
def _redis() -> Generator[Stand]:
    # A rewrite would make the log shorter while the run measures what the server writes to it.
    with RedisServer.start(settings={"auto-aof-rewrite-percentage": "0"}) as server:

        def fresh() -> str:
            server.command("FLUSHALL")
            return server.url()

        yield Stand("redis", fresh, folder=Path(tempfile.gettempdir()))


STANDS: Stands = {**stand.STANDS, "postgres": _postgres, "redis": _redis}
"""Every store that a run from the repository can start, by name."""
