"""PgQueuer: `work` is a worker, `produce` and `once` enqueue by the queries for sync code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from benchmarks.peers.members.body import FailsOnce, body, fail_once
from benchmarks.peers.members.producer import once, serve

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

    async def failing(claimed: Any) -> None:
        try:
            fail_once(claimed.payload.decode())
        except FailsOnce as error:
            raise _peer.RetryRequested from error

    worker.entrypoint("job")(job)
    worker.entrypoint("failing")(failing)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(batch_size=BATCH)


def _queries_of_sync_code() -> Any:
    return _queries.SyncQueries(_drivers.SyncPsycopgDriver(_psycopg.connect(_url, autocommit=True)))


def _produce() -> None:
    asyncio.run(_install())
    queries = _queries_of_sync_code()

    def bulk(texts: Sequence[str], name: str = "job") -> None:
        count = len(texts)
        queries.enqueue([name] * count, [text.encode() for text in texts], [0] * count)

    serve(lambda text: queries.enqueue("job", text.encode()), bulk, lambda texts: bulk(texts, "failing"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["work"]:
            asyncio.run(_work())
        case ["once", *words]:
            queries = _queries_of_sync_code()
            once(lambda text: queries.enqueue("job", text.encode()), words)
        case _:
            _produce()
