"""The address of a server: `https://TOKEN@host:port/prefix`, taken apart; the token is never shown again."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from headrace.errors import ConfigError

_HINT = "write https://TOKEN@host, or http://127.0.0.1:8200 for a server on this machine"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is, and who we are to it."""

    base: str
    """Without the token, without a slash at its end: it may be shown."""
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def parse(url: str) -> Address:
    """Raises ConfigError; what it says never holds the token."""
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
    # The token alone, or as the password of whatever name: both are common.
    token = unquote(parts.password or parts.username or "")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("the token in the server's URL is not one that `headrace tokens create` has shown")
    shown = f"[{host}]" if ":" in host else host
    place = shown if port is None else f"{shown}:{port}"
    return Address(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", token or None)
