"""Stores by URL: the only place that names them, each imported when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.clock import Clock
    from headrace.store.contract import Store

SCHEMES = "sqlite:///file.db, postgresql://user@host/db, memory://"


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
    raise ConfigError(f"no store for {scheme or url[:20]!r}: use one of {SCHEMES}")
