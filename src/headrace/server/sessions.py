"""Sessions of browsers: a signed cookie that stands for a token.

The cookie names the token and an end, and no server keeps it. So every server of a store accepts it, and the end of the
token is the end of its sessions. Only a session that was signed out is kept, with its token, until its own end.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from headrace.server.shared_secret import shared_secret
from headrace.store.contract import Store

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

LIFETIME: Final = timedelta(hours=12)
"""The longest time from the sign-in to the end of a session."""
COOKIE: Final = "headrace_session"
MOST: Final = 4
"""Cookies of this name that are checked. A browser sends several if servers share a host name."""

_SEALED = re.compile(r"([0-9A-Za-z]{12})\.([0-9a-f]{32})\.([0-9]{1,12})\.([0-9a-f]{64})", re.ASCII)


class BrowserSession(NamedTuple):
    """One sign-in of one browser."""

    id: str
    token_id: str
    expires_at: datetime


class SessionSigner:
    """Writes and reads the values of cookies."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    async def load(cls, store: Store) -> SessionSigner:
        """Open with the secret that all servers of a store share."""
        return cls(await shared_secret(store, "session"))

    def start(self, token_id: str, now: datetime, until: datetime | None) -> BrowserSession:
        """A new session of this token. It ends with the token at the latest."""
        end = now + LIFETIME if until is None else min(now + LIFETIME, until)
        # Whole seconds, as the cookie has them.
        return BrowserSession(secrets.token_hex(16), token_id, datetime.fromtimestamp(int(end.timestamp()), UTC))

    def seal(self, session: BrowserSession) -> str:
        """The value of the cookie."""
        text = f"{session.token_id}.{session.id}.{int(session.expires_at.timestamp())}"
        return f"{text}.{self._sign(text)}"

    def read(self, value: str) -> BrowserSession | None:
        """The session of a cookie. None: no server of this store has signed it."""
        match = _SEALED.fullmatch(value)
        if match is None or not hmac.compare_digest(self._sign(value.rpartition(".")[0]), match[4]):
            return None
        return BrowserSession(match[2], match[1], datetime.fromtimestamp(int(match[3]), UTC))

    def _sign(self, text: str) -> str:
        return hmac.digest(self._secret, b"session " + text.encode(), hashlib.sha256).hex()


def carried(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The values of the session cookie in a request."""
    values: list[str] = []
    for name, value in headers:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                if key == COOKIE:
                    values.append(text.strip('"'))
    return values[:MOST]


def set_cookie(request: HTTPConnection, value: str, seconds: int) -> str:
    """The header that gives a browser the cookie. 0 seconds: the browser forgets it."""
    root = quote(request.scope.get("root_path", ""), safe="/")
    parts = [f"{COOKIE}={value}", f"Path={root or '/'}", f"Max-Age={seconds}", "HttpOnly", "SameSite=Strict"]
    # Behind a proxy that ends TLS, only the browser knows that it uses https, and says so in Origin.
    origin = request.headers.get("origin", "")
    if request.scope.get("scheme") == "https" or origin.lower().startswith("https://"):
        parts.append("Secure")
    return "; ".join(parts)
