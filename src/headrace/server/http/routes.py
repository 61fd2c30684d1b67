"""Routes: one thin ASGI function per path, made from the endpoints."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError, StoreError
from headrace.model.scope import Scope as EndpointScope
from headrace.server.auth import Principal
from headrace.server.http import boundary, problems
from headrace.server.http.boundary import Gone, Head, Query
from headrace.server.http.call import Answer, Call, HtmlPage, encode
from headrace.server.http.endpoint import Endpoint
from headrace.server.http.problems import Problem
from headrace.server.state import ServerState

log = logging.getLogger("headrace.server")
access = logging.getLogger("headrace.access")

_SANE = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_CLOSE = (b"connection", b"close")
_PROBLEM = (b"content-type", problems.MEDIA.encode())
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
_DATA = [(b"cache-control", b"no-store"), (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")]

GONE = 499
"""The status in the access log if the client disconnected before the answer."""
LEVEL = 0.005
SPREAD = 0.008
"""Seconds."""

ANONYMOUS = Principal(name="", scopes=frozenset(), queues=None, tenant=None)
"""The caller of an open endpoint."""

GetService = Callable[[], Awaitable[ServerState]]


class _Door:
    """One endpoint, with its decoders."""

    __slots__ = ("decoder", "endpoint", "handler", "query", "takes_nothing")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.handler = endpoint.handler
        self.decoder = None if endpoint.body is None else msgspec.json.Decoder(endpoint.body)
        self.query = None if endpoint.query is None else Query(endpoint.query)
        self.takes_nothing = endpoint.body is not None and _all_optional(endpoint.body)


def _all_optional(kind: Any) -> bool:
    try:
        msgspec.convert({}, kind)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


class RouteGuard:
    """Handles all requests of one path, whatever the method."""

    def __init__(self, endpoints: Iterable[Endpoint], service: GetService) -> None:
        self._doors = {endpoint.method: _Door(endpoint) for endpoint in endpoints}
        self._service = service
        if "GET" in self._doors:
            self._doors.setdefault("HEAD", self._doors["GET"])
        self._allow = ", ".join(sorted(self._doors))
        self._guarded = any(door.endpoint.scope is not None for door in self._doors.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request_id = ""
        principal = ANONYMOUS
        head: Head | None = None
        try:
            service = await self._service()
            head = Head(scope, service.settings)
            request_id = _request_id(head)
            door = self._doors.get(scope["method"])
            request = Request(scope, receive)
            if door is None:
                if self._guarded:
                    await service.auth.principal(request)
                raise _wrong_method(self._allow)
            needed = door.endpoint.scope
            if needed is not None:
                principal = await admit(service, request, needed, door.endpoint.also)
            if door.endpoint.looks:
                service.figures.count(request, principal, door.endpoint.looks)
            body = None if door.decoder is None else await _body(door, door.decoder, head, receive, service)
            query = _query(door, scope["query_string"])
            call = Call(service, principal, request, request_id, scope["path_params"], body, query, head)
            response = await (call.while_there(door.handler(call)) if door.endpoint.long else door.handler(call))
        except (Gone, ClientDisconnect):
            _note(scope, GONE, request_id, principal, began)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes an answer
            request_id = request_id or new_request_id()
            response = refuse(error, request_id)
            if response.status_code == 404 and principal.bound:
                await asyncio.sleep(levelled(time.perf_counter() - began))
            if (head is None or head.much_unread) and _CLOSE not in response.raw_headers:
                response.raw_headers.append(_CLOSE)
        finish(response, request_id)
        await response(scope, receive, send)
        _note(scope, response.status_code, request_id, principal, began)


def levelled(spent: float) -> float:
    """How long to delay a 404 for a bound token, so that the duration does not reveal its cause.

    Finding another tenant's job takes longer than finding none. So both answers wait until a fixed time after the
    beginning, and then for a random number of milliseconds, because timers count whole milliseconds.
    """
    return LEVEL * math.ceil(spent / LEVEL) - spent + random.uniform(0, SPREAD)


async def admit(
    service: ServerState, request: Request, needed: EndpointScope, also: tuple[EndpointScope, ...] = ()
) -> Principal:
    """The caller. Raises Problem if the token lacks the scope."""
    principal = await service.auth.principal(request)
    if not principal.may(needed) and not any(principal.may(scope) for scope in also):
        raise problems.missing_scope(needed)
    return principal


async def _body(
    door: _Door, decoder: msgspec.json.Decoder[Any], head: Head, receive: Receive, service: ServerState
) -> Any:
    settings = service.settings
    if head.empty and door.takes_nothing:
        return decoder.decode(b"{}")
    head.check(settings)
    data = await boundary.read(receive, settings)
    head.read = True
    boundary.check_json(data, settings)
    return boundary.decode(decoder, data)


def _query(door: _Door, raw: bytes) -> Any:
    if door.query is not None:
        return door.query.read(raw)
    for name, _ in boundary.pairs(raw) if raw else ():
        raise boundary.unknown_parameter(name)
    return None


def _wrong_method(allow: str) -> Problem:
    return Problem(405, "method_not_allowed", f"this path takes {allow}", headers={"Allow": allow})


# ── answers ──────────────────────────────────────────────────────────────────


def new_request_id() -> str:
    """Random, for reports to the operator."""
    return os.urandom(8).hex()


def _request_id(head: Head) -> str:
    given = head.request_id
    return given.decode("ascii") if given is not None and _SANE.fullmatch(given) else new_request_id()


def refuse(error: Exception, request_id: str) -> Response:
    """The answer to a failed call."""
    problem = error if isinstance(error, Problem) else None
    if isinstance(error, HeadraceError):
        problem = problems.of(error)
        if isinstance(error, StoreError):
            _faults.note(error, request_id)
    if problem is None:
        log.error("request %s failed", request_id, exc_info=error)
        problem = Problem(500, "internal", "an unexpected error: the operator finds the request id in the log")
    response = Answer(encode(problems.document(problem, request_id)), problem.status, problem.headers)
    response.raw_headers[0] = _PROBLEM
    return response


class _Faults:
    """Limits log lines about the store, because every request has the same one while it is away."""

    def __init__(self) -> None:
        self._logged_at = 0.0
        self._unlogged = 0

    def note(self, error: StoreError, request_id: str) -> None:
        now = time.monotonic()
        if now - self._logged_at < 1:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged:,} more)" if self._unlogged else ""
        self._logged_at, self._unlogged = now, 0
        log.warning("request %s: %s: %s%s", request_id, type(error).__name__, error, more)


_faults = _Faults()


def finish(response: Response, request_id: str) -> None:
    """Headers that every answer has."""
    headers = response.raw_headers
    headers += _ALWAYS
    if not isinstance(response, HtmlPage):
        headers += _DATA
    headers.append((b"x-request-id", request_id.encode()))


def _note(scope: Scope, status: int, request_id: str, principal: Principal, began: float) -> None:
    """One line of JSON: no query string, no arguments, no token."""
    if not access.isEnabledFor(logging.INFO):
        return
    client = scope.get("client")
    line = {
        "event": "request",
        "method": scope["method"],
        "path": scope["path"][:500],
        "status": status,
        "ms": round((time.perf_counter() - began) * 1000, 1),
        "request_id": request_id,
        "principal": principal.name,
        "client": client[0] if client else "",
    }
    # ASCII, so that no character of a path can begin a new line in a log reader.
    access.info(json.dumps(line))


# ── all of them ──────────────────────────────────────────────────────────────


def routes(endpoints: Iterable[Endpoint], service: GetService) -> list[Route]:
    """One route per path. Paths without parameters come first, so that `/v1/jobs/batch` is not read as an id."""
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    ordered = sorted(by_path.items(), key=lambda item: "{" in item[0])
    # A key is free text, which may have a slash.
    return [
        Route(path.replace("{key}", "{key:path}"), RouteGuard(group, service), name=path) for path, group in ordered
    ]


def nowhere(service: GetService) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The answer where there is no route. Below /v1 it needs a valid token."""

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request_id = new_request_id()
        principal = ANONYMOUS
        try:
            frame = await service()
            request_id = _request_id(Head(scope, frame.settings))
            if scope["path"].removeprefix(scope.get("root_path", "")).startswith("/v1"):
                principal = await frame.auth.principal(Request(scope, receive))
            raise problems.not_found("there is no such path")
        except Exception as error:  # noqa: BLE001 - as in RouteGuard
            response = refuse(error, request_id)
        finish(response, request_id)
        await response(scope, receive, send)
        _note(scope, response.status_code, request_id, principal, began)

    return no_route
