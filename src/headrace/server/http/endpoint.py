"""Endpoints: what the server offers, as data; routes, the OpenAPI document and the scope matrix are made from these."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.responses import Response

    from headrace.server.http.call import Call

Handler = Callable[["Call"], Coroutine[Any, Any, "Response"]]


class Scope(StrEnum):
    """What a token may do."""

    ENQUEUE = "enqueue"
    """Put jobs in, and hear how one's own end."""
    WORK = "work"
    """Claim jobs and settle them."""
    READ = "read"
    """Look at everything."""
    OPERATE = "operate"
    """Cancel, retry, delete, pause, replay."""
    ADMIN = "admin"
    """Tokens, limits, the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One call over HTTP."""

    method: str
    path: str
    """With its parameters in braces: `/v1/jobs/{id}`."""
    scope: Scope | None
    """What the caller's token must have; None: open to everybody."""
    also: tuple[Scope, ...] = ()
    """Scopes that will do instead."""
    does: str
    """One sentence, for the OpenAPI document."""
    handler: Handler
    body: Any = None
    """A msgspec Struct that forbids unknown fields; None: a body is not read. An empty body will do where nothing is required."""
    query: Any = None
    """The same for the query string; None: it takes none."""
    answers: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """status → type of the body, None: it has none."""
    problems: tuple[tuple[int, str], ...] = ()
    """(status, code) beyond those that every endpoint has."""
    looks: int = 0
    """What a call costs of the looks that a caller has per second; 0: it is not counted. For whatever is polled."""
    long: bool = False
    """It may keep the store busy for a while and changes nothing: it ends when the client hangs up."""
    media: str = "application/json"
    """Of its answers."""
