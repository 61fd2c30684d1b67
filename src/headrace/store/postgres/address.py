"""Addresses: what a PostgreSQL URL says, split into the driver's part and ours."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """One server, how to reach it and what stands in between."""

    dsn: str
    """For the driver, without our own options; holds the password, so never show it."""
    listen_dsn: str | None
    """Where LISTEN works; None: nowhere, so waiting is polling."""
    pooled: bool
    """A transaction pooler stands in between: nothing may rest on a session."""
    shown: str
    """For people: host, port and database."""
    pool: int
    """Connections at most, beside those for waking."""


def parse(url: str) -> Address:
    """Read a URL; `pooler=transaction`, `listen=<direct URL>` and `pool=<connections>` are ours, the rest the driver's."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(
            "the PostgreSQL URL cannot be read: write postgresql://user:password@host:5432/database"
        ) from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    pooler = query.pop("pooler", None)
    listen = query.pop("listen", None)
    pool = query.pop("pool", "4")
    if pooler not in {None, "transaction", "session"}:
        raise ConfigError(f"pooler={pooler!r}: write pooler=transaction, or leave it out")
    if not pool.isascii() or not pool.isdecimal() or not 1 <= int(pool) <= 100:
        raise ConfigError(f"pool={pool!r}: a whole number from 1 to 100")
    dsn = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(query)))
    host = parts.hostname or query.get("host") or "localhost"
    database = parts.path.lstrip("/") or query.get("dbname") or parts.username or ""
    pooled = pooler == "transaction"
    return Address(
        dsn=dsn,
        listen_dsn=listen or (None if pooled else dsn),
        pooled=pooled,
        shown=f"{host}:{port or 5432}/{database}",
        pool=int(pool),
    )
