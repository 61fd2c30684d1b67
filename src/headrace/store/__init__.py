"""Stores by URL. Only this module names them, and each is imported when it is first needed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.model.clock import Clock
    from headrace.store.contract import Store

REDIS_SCHEMES = frozenset(
    f"{engine}{tls}{kind}"
    for engine in ("redis", "valkey")
    for tls in ("", "s")
    for kind in ("", "+cluster", "+sentinel")
)
IN_ONE_PROCESS = frozenset({"memory"})
"""Schemes of stores that exist inside one process only, so that no other process can reach their jobs."""
SCHEMES = "sqlite:///file.db, postgresql://user@host/db, redis://host:6379/0, https://token@host, memory://"


def connect(url: str, *, clock: Clock | None = None, shards: Mapping[str, int] | None = None) -> Store:
    """The store behind a URL, not yet opened. `clock` replaces the store's own, for tests.

    `shards`: queue → over how many shards it is spread, for stores where one queue is bound to one node.
    """
    from urllib.parse import urlsplit

    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        raise ConfigError(
            "the store's URL cannot be read: in a password write [ as %5B, ] as %5D, / as %2F and @ as %40"
        ) from None
    if scheme == "memory":
        from headrace.store.memory import MemoryStore

        return MemoryStore(clock=clock)
    if scheme == "sqlite":
        from headrace.store.sqlite.store import SqliteStore

        return SqliteStore(url, clock=clock)
    if scheme in {"postgresql", "postgres"}:
        with _needs("asyncpg", "PostgreSQL needs its driver: pip install 'headrace[postgres]'"):
            from headrace.store.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock)
    if scheme in REDIS_SCHEMES:
        with _needs("hiredis", "Redis and Valkey need their driver: pip install 'headrace[redis]'"):
            from headrace.store.redis.sharded import ShardedRedisStore

        return ShardedRedisStore(url, clock=clock, shards=shards)
    if scheme in {"http", "https"}:
        with _needs("httpx2", "a store behind a server needs a client: pip install 'headrace[http]'"):
            from headrace.store.http.store import HttpStore

        return HttpStore(url, clock=clock)
    # The message does not show the URL, because one without a scheme may begin with a password.
    raise ConfigError(f"no store for {scheme!r}: use one of {SCHEMES}")


def in_one_process(url: str) -> bool:
    """Whether the store behind a URL exists in this process only. An app then uses one store object for all its loops."""
    return scheme_of(url) in IN_ONE_PROCESS


def scheme_of(url: str) -> str:
    """The part of a URL that names the kind of store, and never a password."""
    return url.partition(":")[0] if ":" in url else ""


@contextmanager
def _needs(driver: str, advice: str) -> Generator[None]:
    """Turns the ImportError of a missing driver into a ConfigError with the remedy."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != driver:
            raise
        raise ConfigError(advice) from None
