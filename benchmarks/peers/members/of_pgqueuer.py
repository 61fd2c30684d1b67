"""PgQueuer: `work` is a worker, `produce` enqueues by the queries for sync code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from benchmarks.peers.members.body import body
from benchmarks.peers.members.producer import serve

_peer: Any = import_module("pgqueuer")
_drivers: Any = import_module("pgqueuer.db")
_queries: Any = import_module("pgqueuer.queries")
_asyncpg: Any = import_module("asyncpg")
_psycopg: Any = import_module("psycopg")
_url = os.environ["PEERS_URL"]
BATCH = 100


async def _install() -> None:
    connection = await _asyncpg.connect(_url)
    with suppress(Exception):  # it is there
        await _queries.Queries(_drivers.AsyncpgDriver(connection)).install()
    await connection.close()


async def _work() -> None:
    connection = await _asyncpg.connect(_url)
    worker = _peer.PgQueuer(_drivers.AsyncpgDriver(connection))

    async def job(claimed: Any) -> None:
        body(claimed.payload.decode())

    worker.entrypoint("job")(job)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(batch_size=BATCH)


def _produce() -> None:
    asyncio.run(_install())
    queries = _queries.SyncQueries(_drivers.SyncPsycopgDriver(_psycopg.connect(_url, autocommit=True)))

    def bulk(texts: Sequence[str]) -> None:
        count = len(texts)
        queries.enqueue(["job"] * count, [text.encode() for text in texts], [0] * count)

    serve(lambda text: queries.enqueue("job", text.encode()), bulk)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(_work())
    else:
        _produce()
