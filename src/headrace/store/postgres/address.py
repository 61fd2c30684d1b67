"""Addresses: parses a PostgreSQL URL into the driver's part and headrace's options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from headrace.errors import ConfigError

_COMMIT: Final = ("on", "off", "local", "remote_write", "remote_apply")
_UNREADABLE: Final = "the PostgreSQL URL cannot be read: write postgresql://user:password@host:5432/database"


@dataclass(frozen=True, slots=True)
class Address:
    """One server (or a primary and its standbys), how to reach it, and which pooler is in between."""

    dsns: tuple[str, ...]
    """URLs for the driver, one per host, without headrace's options. They contain the password, so never show them."""
    listen_dsns: tuple[str, ...]
    """URLs where LISTEN works. None: the store polls."""
    pooler: str | None
    """`transaction` or `session`: the mode of a pooler in between, as the URL gives it."""
    commit: str | None
    """What commits wait for. None: the server's setting, but at least the disk."""
    shown: str
    """Host, port and database, for messages."""
    pool: int
    """The most connections, besides those for heartbeats and for waking."""

    @property
    def pooled(self) -> bool:
        """A transaction pooler is in between, so no state may depend on a session."""
        return self.pooler == "transaction"

    @property
    def strict(self) -> bool:
        """Acknowledged writes must survive a crash of the machine."""
        return self.commit != "off"


def parse(url: str) -> Address:
    """Read a URL; `pooler`, `listen=<direct URL>`, `pool=<connections>` and `synchronous_commit` are headrace's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(_UNREADABLE) from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    pooler = query.pop("pooler", None)
    listen = query.pop("listen", None)
    pool = query.pop("pool", "4")
    commit = query.pop("synchronous_commit", None)
    if pooler not in {None, "transaction", "session"}:
        raise ConfigError(f"pooler={pooler!r}: write pooler=transaction or pooler=session, or leave it out")
    if not pool.isascii() or not pool.isdecimal() or not 1 <= int(pool) <= 100:
        raise ConfigError(f"pool={pool!r}: a whole number from 1 to 100")
    if commit is not None and commit not in _COMMIT:
        raise ConfigError(f"synchronous_commit={commit!r}: one of {', '.join(_COMMIT)}")
    dsns = tuple(_each_host(parts, query))
    database = parts.path.lstrip("/") or query.get("dbname") or parts.username or ""
    direct = () if pooler == "transaction" else dsns
    return Address(
        dsns=dsns,
        listen_dsns=direct if listen is None else _listen(listen),
        pooler=pooler,
        commit=commit,
        shown=f"{_hosts_shown(parts, query)}/{database}",
        pool=int(pool),
    )


def _listen(url: str) -> tuple[str, ...]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(_UNREADABLE) from None
    return tuple(_each_host(parts, dict(parse_qsl(parts.query, keep_blank_values=True))))


def _each_host(parts: SplitResult, query: dict[str, str]) -> Iterator[str]:
    """One URL per host, because the driver has one timeout for all hosts, which the first could use up."""
    user, at, hosts = parts.netloc.rpartition("@")
    several = hosts.split(",")
    if len(several) > 1:
        # Only one of several accepts writes, and that may change.
        query = {"target_session_attrs": "read-write", **query}
    for host in several:
        url = parts._replace(scheme="postgresql", netloc=f"{user}{at}{host}", query=urlencode(query))
        try:
            url.port  # noqa: B018 (it is read from the text, and may not be a number)
        except ValueError:
            raise ConfigError(_UNREADABLE) from None
        yield urlunsplit(url)


def _hosts_shown(parts: SplitResult, query: dict[str, str]) -> str:
    hosts = parts.netloc.rpartition("@")[2] or query.get("host") or "localhost"
    return ",".join(_shown(host) for host in hosts.split(","))


def _shown(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return host if colon and port.isdecimal() and not name.endswith(":") else f"{host}:5432"
