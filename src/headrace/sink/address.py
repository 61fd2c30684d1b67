"""Parses `clickhouse://user:password@host:8123/database?table=name`. The password is never shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import ConfigError

SCHEMES: Final = {"clickhouse": 8123, "clickhouses": 8443}
"""The schemes, the second one with TLS, and the ports of ClickHouse's HTTP interface."""
TABLE: Final = "headrace_ends"
_HINT = "write clickhouse://user:password@host:8123/database, or clickhouses:// with TLS"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SinkAddress:
    """Where the rows go."""

    host: str
    port: int
    tls: bool
    database: str
    table: str
    user: str
    password: str = field(default="", repr=False)
    ca: str = ""
    """A file with the certificates that sign the server's own. Empty: those of the system."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The server and the table, for messages and for the name of the sink's record."""
        return f"{self.authority}/{self.database}.{self.table}"


def parse(url: str) -> SinkAddress:
    """Raises ConfigError, whose message never contains the password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"history_url cannot be read: {_HINT}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ConfigError(f"history_url names no ClickHouse server: {_HINT}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if options.keys() - {"table", "ca"}:
        # The option is not repeated, because it may be the rest of a password with an unescaped question mark.
        raise ConfigError(
            "history_url has an option other than table and ca; in a password write ? as %3F and & as %26"
        )
    user, password = unquote(parts.username or "default"), unquote(parts.password or "")
    if ":" in user:
        raise ConfigError("the user in history_url has a colon, which the HTTP interface of ClickHouse cannot carry")
    return SinkAddress(
        host=parts.hostname,
        port=SCHEMES[parts.scheme] if port is None else port,
        tls=parts.scheme == "clickhouses",
        database=_name("database", unquote(parts.path.strip("/")) or "default"),
        table=_name("table", options.get("table", TABLE)),
        user=user,
        password=password,
        ca=options.get("ca", ""),
    )


def check_history_url(_: str, value: object) -> str:
    """The setting `history_url`: empty, or an address of ClickHouse."""
    if not isinstance(value, str):
        raise ConfigError(f"history_url is not text: {_HINT}")
    if value:
        parse(value)
    return value


def _name(what: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"the {what} in history_url is not a plain name of letters, digits and underscores")
    return name
