"""Turns bearer tokens and session cookies into principals, and decides what a principal may do and see.

`operate/tokens.py` makes tokens, and `sessions.py` signs cookies.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from headrace.model.scope import Scope
from headrace.operate import tokens
from headrace.runtime.loopback import on_this_machine
from headrace.server.cache import Shared
from headrace.server.http.problems import Problem
from headrace.server.http.rate_limit import RateLimit
from headrace.server.sessions import BrowserSession, SessionSigner, carried
from headrace.store.contract import Store

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

FRESH: Final = 0.9
"""Seconds for which tokens are kept in memory. A revoked token stops working within a second."""
FAILURES: Final = 20
"""Wrong tokens from one address that are checked at once; then one every `60 / FAILURES` seconds."""
ADDRESSES: Final = 10_000
"""Addresses whose failures are remembered."""

_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_IN_QUERY: Final = frozenset({"token", "access_token"})
_PASSED_ON: Final = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
"""Headers that proxies add."""
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - to be told apart, not to be bound to
_SAFE: Final = frozenset({"GET", "HEAD"})
_NO_DIGEST: Final = tokens.digest(b"")


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, and what it may do and see."""

    name: str
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """None: all."""
    tenant: str | None = None
    """None: all."""
    token_id: str = field(default="", compare=False)
    """The id of the token. Empty: there is none."""

    def may(self, scope: Scope) -> bool:
        """Whether the caller has this scope. `admin` includes all scopes."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, queue: str | None, tenant: str | None) -> bool:
        """Whether the caller may see it. None stands for all queues, or all tenants."""
        return (self.queues is None or queue in self.queues) and (self.tenant is None or tenant == self.tenant)

    @property
    def bound(self) -> bool:
        """Whether the token is bound to a tenant or to queues."""
        return self.queues is not None or self.tenant is not None


LOCAL: Final = Principal("local", frozenset(Scope))
"""Any caller on this machine, as long as there is no token."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that was valid at the last read of the store."""

    sha256: bytes
    expires_at: datetime | None
    principal: Principal
    signed_out: frozenset[str]
    """Sessions that are over before their time."""


class Auth:
    """Checks the callers of one server."""

    def __init__(
        self,
        store: Store,
        *,
        failures: int = FAILURES,
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.monotonic,
        signer: SessionSigner | None = None,
    ) -> None:
        """`host`: the name or address that the server is bound to. `clock` is for tests. None: no cookie is valid."""
        self._store = store
        self._signer = signer
        self._host = host
        self._clock = clock
        self._brake = Brake(failures, clock)
        self._asking = Shared(self._refresh)
        self._asked = -math.inf
        """When the tokens were read, for their age."""
        self._changes = 0
        self._time: tuple[datetime, float] | None = None
        """The store's time at the last read, and this server's."""
        self._known: dict[str, _Known] = {}
        self._open = False
        """There is no token at all."""

    async def principal(self, request: HTTPConnection) -> Principal:
        """The caller. Raises Problem 401, or 429 after too many wrong tokens."""
        if self._clock() - self._asked >= FRESH:
            await self._asking.get()
        if (query := request.scope["query_string"]) and _IN_QUERY.intersection(
            name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        ):
            # The web server may log the URL after the answer.
            request.scope["query_string"] = b""
            raise refused("a token must not be in the URL, where logs keep it: revoke it, and send tokens as a header")
        if self._open:
            return _local(request, self._host)
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        if not given:
            return self._by_cookie(request)
        principal = self._look_up(_bearer(given[0])) if len(given) == 1 else None
        if principal is None:
            self._brake.press(address_of(request))
            raise refused("that token is not valid: it is mistyped, expired or revoked")
        return principal

    def _look_up(self, text: bytes) -> Principal | None:
        known = self._known.get(tokens.id_of(text) or "")
        # The comparison is always made, so that the duration does not reveal which ids exist.
        same = hmac.compare_digest(tokens.digest(text), _NO_DIGEST if known is None else known.sha256)
        if known is None or not same:
            return None
        if known.expires_at is not None and self._now() >= known.expires_at:
            return None
        return known.principal

    def _by_cookie(self, request: HTTPConnection) -> Principal:
        values = carried(request.scope["headers"]) if self._signer is not None else []
        if not values:
            raise refused("this server requires a token: send it as the header Authorization: Bearer hr_…")
        session = self.session(request)
        if session is None:
            self._brake.press(address_of(request))
            raise refused("that session is not valid: sign in with a token")
        known = self._valid(session)
        if known is None:
            raise refused("that session is over: sign in again with a token")
        # A browser adds the cookie to requests that other pages of the same site cause.
        check_origin(request, unsure=request.scope.get("method") in _SAFE)
        return known.principal

    def session(self, request: HTTPConnection) -> BrowserSession | None:
        """The session that the cookie of a request names. It may be over."""
        if self._signer is None:
            return None
        read = [self._signer.read(value) for value in carried(request.scope["headers"])]
        sessions = [session for session in read if session is not None]
        return next((session for session in sessions if self._valid(session)), sessions[0] if sessions else None)

    def _valid(self, session: BrowserSession) -> _Known | None:
        known = self._known.get(session.token_id)
        if known is None or session.id in known.signed_out or self._now() >= session.expires_at:
            return None
        return None if known.expires_at is not None and self._now() >= known.expires_at else known

    def start(self, principal: Principal) -> tuple[BrowserSession, str] | None:
        """A new session of the principal's token, and the value of its cookie. None: there is no token."""
        known = self._known.get(principal.token_id)
        if known is None or self._signer is None:
            return None
        session = self._signer.start(principal.token_id, self._now(), known.expires_at)
        return session, self._signer.seal(session)

    async def end(self, session: BrowserSession) -> None:
        """End a session before its time, here at once and on other servers within a second."""
        await tokens.sign_out(self._store, session.token_id, session.id, session.expires_at)
        self.forget()

    def forget(self) -> None:
        """Read the tokens again before the next answer, because they were changed here."""
        self._changes += 1
        self._asked = -math.inf
        self._asking.forget()

    def _now(self) -> datetime:
        """The store's time, estimated without a call."""
        assert self._time is not None
        read, at = self._time
        return read + timedelta(seconds=self._clock() - at)

    async def _refresh(self) -> None:
        while True:
            changes, asked = self._changes, self._clock()
            now = await self._store.now()
            records = await self._store.records(tokens.KIND)
            if changes == self._changes:
                break  # Otherwise the read may lack a change that was made during it.
        self._known = {
            id: _Known(
                token.sha256,
                token.expires_at,
                Principal(token.name, token.scopes, token.queues, token.tenant, id),
                frozenset(token.signed_out),
            )
            for id, token in tokens.read(records).items()
            if token.revoked_at is None
        }
        # A record that cannot be read also counts as a token.
        self._open = not records
        self._time, self._asked = (now, asked), asked

    async def aclose(self) -> None:
        """Cancel the read under way."""
        await self._asking.aclose()


def check_origin(request: HTTPConnection, *, unsure: bool = True) -> None:
    """Raise Problem 403 if a browser sends this request for another site. `unsure`: accept one that does not say."""
    site = origin = None
    host = b""
    for name, value in request.scope["headers"]:
        if name == b"sec-fetch-site":
            site = value
        elif name == b"origin":
            origin = value
        elif name == b"host":
            host = value
    if site is not None:
        good = site in {b"same-origin", b"none"}
    else:
        good = unsure if origin is None else _host(origin.decode("latin-1")) == host.decode("latin-1").lower()
    if not good:
        raise Problem(
            403, "csrf", "this request comes from a page of another site: only pages of this server may do that"
        )


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


class Brake:
    """Limits wrong tokens by address. Valid tokens are never delayed."""

    def __init__(self, failures: int, clock: Callable[[], float], *, addresses: int = ADDRESSES) -> None:
        self._pace = RateLimit(failures, 60 / failures, clock, keys=addresses)

    def press(self, address: str) -> None:
        """Count one failure. Raises Problem 429 if there were too many."""
        if wait := self._pace.wait(address):
            raise Problem(
                429,
                "too_many_failures",
                "too many wrong tokens from this address: wait, and send a valid one",
                headers={"Retry-After": str(math.ceil(wait))},
            )


def address_of(request: HTTPConnection) -> str:
    """The key for failures: an IPv4 address, or an IPv6 network, because a host has many addresses of it."""
    return _counted("" if request.client is None else request.client.host)


@lru_cache(maxsize=256)
def _counted(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "?"
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _bearer(value: bytes) -> bytes:
    """The text after `Bearer`, or an empty text."""
    scheme, _, text = value.partition(b" ")
    return text.strip(b" ") if scheme.lower() == b"bearer" else b""


def _local(request: HTTPConnection, bound: str) -> Principal:
    """Without tokens: callers on this machine, except through a proxy on it or from a web page in a browser on it."""
    host = b""
    near = request.client is not None and on_this_machine(request.client.host)
    for name, value in request.scope["headers"]:
        if name == b"host":
            host = value
        elif name in _PASSED_ON:
            near = False
    # Proxies without such headers use HTTP/1.0 by default. Clients no longer do.
    if not near or request.scope.get("http_version") == "1.0":
        raise refused(
            "there are no tokens, so the server accepts calls from this machine only: make a token with "
            "`headrace tokens create NAME --scope …`"
        )
    if not _own_name(host, bound):
        # An attacker's DNS name may point to this machine, for a browser on it.
        raise Problem(
            421,
            "host_not_allowed",
            "there are no tokens, so the server accepts the name localhost only: use http://127.0.0.1, or make a token",
        )
    check_origin(request)
    return LOCAL


@lru_cache(maxsize=256)
def _own_name(host: bytes, bound: str) -> bool:
    """Whether it is localhost, a loopback address, or the server's own host. An attacker's DNS may own other names."""
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return False
    return on_this_machine(name) or (name == bound.lower() and bound not in _EVERYWHERE)


def refused(detail: str) -> Problem:
    """The answer to a caller without a valid token or session."""
    return Problem(401, "unauthorized", detail, headers=_CHALLENGE)
