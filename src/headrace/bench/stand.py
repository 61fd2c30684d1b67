"""Where a run takes place: a throw-away file or server for a bare name, or the store behind a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.settings import mask_url
from headrace.store import REDIS_SCHEMES, connect


@dataclass(frozen=True, slots=True)
class Stand:
    """A store to measure."""

    engine: str
    fresh: Callable[[], str]
    """The URL of a store for the next group of workloads: an empty one where that can be had."""
    shared: bool = True
    """Whether several processes can use one store."""


@contextmanager
def _sqlite() -> Generator[Stand]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        numbers = iter(range(1_000_000))
        yield Stand("sqlite", lambda: f"sqlite:///{Path(folder) / f'bench-{next(numbers)}.db'}")


@contextmanager
def _postgres() -> Generator[Stand]:
    from headrace.testing.servers import PostgresServer

    with PostgresServer.start() as server:
        yield Stand("postgres", server.create_database)


@contextmanager
def _redis() -> Generator[Stand]:
    from headrace.testing.redis_servers import RedisServer

    # A rewrite would make the log shorter in the middle of measuring what is written to it.
    with RedisServer.start(settings={"auto-aof-rewrite-percentage": "0"}) as server:

        def fresh() -> str:
            server.command("FLUSHALL")
            return server.url()

        yield Stand("redis", fresh)


@contextmanager
def _memory() -> Generator[Stand]:
    yield Stand("memory", lambda: "memory://", shared=False)


STANDS: dict[str, Callable[[], AbstractContextManager[Stand]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
    "memory": _memory,
}
_ENGINES = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    **dict.fromkeys(REDIS_SCHEMES, "redis"),
}


@contextmanager
def open_stand(store: str) -> Generator[Stand]:
    """The stand for `--store`; a ConfigError for a name or URL that means nothing."""
    if "://" not in store:
        if store not in STANDS:
            raise ConfigError(f"no store {store!r} to measure: use {', '.join(STANDS)}, or the URL of an empty store")
        with STANDS[store]() as stand:
            yield stand
        return
    connect(store)  # refuses a scheme that nobody knows, before anything is started
    scheme = urlsplit(store).scheme
    if scheme == "memory":
        with _memory() as stand:
            yield stand
        return
    yield Stand(_ENGINES.get(scheme, scheme), lambda: store)


async def prepare(url: str) -> None:
    """Bring a store up to date, and make sure that nobody else's jobs are in it."""
    store = connect(url)
    try:
        await store.migrate()
        await store.open()
        for queue in (await store.stats()).queues:
            if not queue.queue.startswith("bench-") and queue.ready + queue.scheduled + queue.running:
                raise ConfigError(
                    f"{mask_url(url)} holds jobs of queue {queue.queue!r}: measure on an empty store, never on a live one"
                )
    finally:
        await store.close()


def shown(store: str) -> str:
    """A bare name, or a URL without its password."""
    return mask_url(store) if "://" in store else store
