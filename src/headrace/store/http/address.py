"""Parses the address of a server, `https://TOKEN@host:port/prefix`. The token is never shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.errors import ConfigError

_HINT = "write https://TOKEN@host, or http://127.0.0.1:8200 for a server on this machine"


@dataclass(frozen=True, slots=True)
class Address:
    """The server's URL and the token."""

    base: str
    """Without the token and without a slash at its end. It may be shown."""
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def parse(url: str) -> Address:
    """Raises ConfigError, whose message never contains the token."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"the server's URL cannot be read: {_HINT}") from None
    host = parts.hostname
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(f"the server's URL names no host: {_HINT}")
    if parts.query or parts.fragment:
        raise ConfigError(f"the URL of a server takes no options after ? or #: {_HINT}")
    # The token may be the user or the password, because both forms are common.
    token = unquote(parts.password or parts.username or "")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("the token in the server's URL is not one that `headrace tokens create` has shown")
    shown = f"[{host}]" if ":" in host else host
    place = shown if port is None else f"{shown}:{port}"
    return Address(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", token or None)
