"""Who calls: bearer tokens to principals, and what a principal may do and see. Tokens themselves are in `tokens.py`."""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from headrace.runtime.loopback import on_this_machine
from headrace.server import tokens
from headrace.server.cache import Shared
from headrace.server.http.endpoint import Scope
from headrace.server.http.problems import Problem
from headrace.server.http.rate_limit import RateLimit
from headrace.store.contract import Store

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

FRESH: Final = 0.9
"""Seconds for which the tokens are known from memory: one that is revoked stops working within a second."""
FAILURES: Final = 20
"""Wrong tokens from one address that are looked at at once; then one every `60 / FAILURES` seconds."""
ADDRESSES: Final = 10_000
"""Addresses whose failures are remembered."""

_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_IN_QUERY: Final = frozenset({"token", "access_token"})
_PASSED_ON: Final = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
"""Headers that proxies add."""
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - to be told apart, not to be bound to
_NOBODY: Final = tokens.digest(b"")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and what they may do and see."""

    name: str
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """None: all."""
    tenant: str | None = None
    """None: all."""

    def may(self, scope: Scope) -> bool:
        """Whether this scope is among theirs; admin has them all."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def sees(self, queue: str | None, tenant: str | None) -> bool:
        """Whether they may know of it. None stands for something of every queue, or of every tenant."""
        return (self.queues is None or queue in self.queues) and (self.tenant is None or tenant == self.tenant)

    @property
    def bound(self) -> bool:
        """Whether there is anything that they must not know of."""
        return self.queues is not None or self.tenant is not None


LOCAL: Final = Principal("local", frozenset(Scope))
"""Everybody on this machine, as long as there is no token."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that was good when the store was last asked."""

    sha256: bytes
    expires_at: datetime | None
    principal: Principal


class Auth:
    """The doorkeeper of one server."""

    def __init__(
        self,
        store: Store,
        *,
        failures: int = FAILURES,
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host`: the name or address that the server is bound to. `clock` is for tests."""
        self._store = store
        self._host = host
        self._clock = clock
        self._brake = Brake(failures, clock)
        self._asking = Shared(self._refresh)
        self._asked = -math.inf
        self._time: datetime | None = None
        """The store's, when it was asked."""
        self._known: dict[str, _Known] = {}
        self._open = False
        """There is no token at all."""

    async def principal(self, request: HTTPConnection) -> Principal:
        """Who calls; a Problem 401 (or 429, after many) if that is nobody."""
        if self._clock() - self._asked >= FRESH:
            await self._asking.get()
        if (query := request.scope["query_string"]) and _IN_QUERY.intersection(
            name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        ):
            # The web server around us may log the address once the answer is out.
            request.scope["query_string"] = b""
            raise _refused(
                "a token does not belong into the URL, where logs keep it: send it as a header and revoke it"
            )
        if self._open:
            return _local(request, self._host)
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        if not given:
            raise _refused("this server wants a token: send it as the header Authorization: Bearer hr_…")
        found = self._look_up(_bearer(given[0])) if len(given) == 1 else None
        if found is None:
            self._brake.press(address_of(request))
            raise _refused("that token is not good: it is mistyped, expired or revoked")
        return found

    def _look_up(self, text: bytes) -> Principal | None:
        known = self._known.get(tokens.id_of(text) or "")
        # The comparison is made in any case, so that time does not tell which ids there are.
        same = hmac.compare_digest(tokens.digest(text), _NOBODY if known is None else known.sha256)
        if known is None or not same:
            return None
        if known.expires_at is not None and self._now() >= known.expires_at:
            return None
        return known.principal

    def _now(self) -> datetime:
        """The store's time, without asking it."""
        assert self._time is not None
        return self._time + timedelta(seconds=self._clock() - self._asked)

    async def _refresh(self) -> None:
        asked = self._clock()
        now = await self._store.now()
        records = await self._store.records(tokens.KIND)
        self._known = {
            id: _Known(token.sha256, token.expires_at, Principal(token.name, token.scopes, token.queues, token.tenant))
            for id, token in tokens.read(records).items()
            if token.revoked_at is None
        }
        # One that cannot be read closes the door like any other.
        self._open = not records
        self._time, self._asked = now, asked

    async def aclose(self) -> None:
        """Ask no longer."""
        await self._asking.aclose()


def check_origin(request: HTTPConnection) -> None:
    """A Problem 403 if a browser sends this on behalf of another site."""
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
        good = origin is None or _host(origin.decode("latin-1")) == host.decode("latin-1").lower()
    if not good:
        raise Problem(403, "csrf", "this comes from a page of another site: only pages of this server may do that")


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


class Brake:
    """Slows down whoever keeps trying wrong tokens, by address; good tokens are never held up."""

    def __init__(self, failures: int, clock: Callable[[], float], *, addresses: int = ADDRESSES) -> None:
        self._pace = RateLimit(failures, 60 / failures, clock, keys=addresses)

    def press(self, address: str) -> None:
        """One failure; a Problem 429 if there were too many."""
        if wait := self._pace.wait(address):
            raise Problem(
                429,
                "too_many_failures",
                "too many wrong tokens from this address: wait, and try the right one",
                headers={"Retry-After": str(math.ceil(wait))},
            )


def address_of(request: HTTPConnection) -> str:
    """Whom failures are counted against: an IPv4 address, or an IPv6 network, of which a host has plenty of addresses."""
    return _counted("" if request.client is None else request.client.host)


@lru_cache(maxsize=256)
def _counted(host: str) -> str:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return "?"
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _bearer(value: bytes) -> bytes:
    """What follows `Bearer`, empty if nothing does."""
    scheme, _, text = value.partition(b" ")
    return text.strip(b" ") if scheme.lower() == b"bearer" else b""


def _local(request: HTTPConnection, bound: str) -> Principal:
    """Without tokens: whoever is on this machine, not in front of a proxy on it and not a web page in a browser on it."""
    host = b""
    near = request.client is not None and on_this_machine(request.client.host)
    for name, value in request.scope["headers"]:
        if name == b"host":
            host = value
        elif name in _PASSED_ON:
            near = False
    # Proxies that say nothing of the sort speak this to us unless they are told otherwise; no client of today does.
    if not near or request.scope.get("http_version") == "1.0":
        raise _refused(
            "there are no tokens, so only this machine is answered: make one with `headrace tokens create NAME --scope …`"
        )
    if not _own_name(host, bound):
        # A name that somebody else made point to this machine, for a browser on it to follow.
        raise Problem(
            421,
            "host_not_allowed",
            "there are no tokens, so only the name localhost is answered: use http://127.0.0.1, or make a token",
        )
    check_origin(request)
    return LOCAL


@lru_cache(maxsize=256)
def _own_name(host: bytes, bound: str) -> bool:
    """localhost, a loopback address, or what the server is bound to. Any other name may be one that an attacker's DNS answers for."""
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return False
    return on_this_machine(name) or (name == bound.lower() and bound not in _EVERYWHERE)


def _refused(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers=_CHALLENGE)
