"""Stores by URL: the only place that names them, each imported when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.store.redis import url as redis_url

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.store.contract import Store

REDIS_SCHEMES = redis_url.SCHEMES
SCHEMES = "sqlite:///file.db, postgresql://user@host/db, redis://host:6379/0, memory://"


def connect(url: str, *, clock: Clock | None = None) -> Store:
    """The store behind a URL, not yet opened. `clock` replaces the store's own, for tests."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        from headrace.store.memory import MemoryStore

        return MemoryStore(clock=clock)
    if scheme == "sqlite":
        from headrace.store.sqlite.store import SqliteStore

        return SqliteStore(url, clock=clock)
    if scheme in {"postgresql", "postgres"}:
        try:
            from headrace.store.postgres.store import PostgresStore
        except ModuleNotFoundError as missing:
            if missing.name != "asyncpg":
                raise
            raise ConfigError("PostgreSQL needs its driver: pip install 'headrace[postgres]'") from None

        return PostgresStore(url, clock=clock)
    if scheme in REDIS_SCHEMES:
        try:
            from headrace.store.redis.store import RedisStore
        except ModuleNotFoundError as missing:
            if missing.name != "redis":
                raise
            raise ConfigError("Redis and Valkey need their driver: pip install 'headrace[redis]'") from None

        return RedisStore(url, clock=clock)
    raise ConfigError(f"no store for {scheme or url[:20]!r}: use one of {SCHEMES}")
