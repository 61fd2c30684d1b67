"""Endpoints as data. Routes, the OpenAPI document and the scope matrix are made from them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.model.scope import Scope

if TYPE_CHECKING:
    from starlette.responses import Response

    from headrace.server.http.call import Call

__all__ = ["Endpoint", "Handler", "Scope"]

Handler = Callable[["Call"], Coroutine[Any, Any, "Response"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One call over HTTP."""

    method: str
    path: str
    """With its parameters in braces: `/v1/jobs/{id}`."""
    scope: Scope | None
    """The scope that the token needs. None: no token is needed."""
    also: tuple[Scope, ...] = ()
    """Scopes that are accepted instead."""
    does: str
    """One sentence, for the OpenAPI document."""
    handler: Handler
    body: Any = None
    """A msgspec Struct that forbids unknown fields. It may be empty if no field is required. None: no body is read."""
    query: Any = None
    """The same for the query string. None: there is none."""
    answers: Mapping[int, Any] = field(default_factory=dict[int, Any])
    """status → type of the body. None: no body."""
    problems: tuple[tuple[int, str], ...] = ()
    """(status, code) besides those that every endpoint has."""
    looks: int = 0
    """How many of a caller's reads per second one call uses. 0: it is not counted."""
    long: bool = False
    """It may take long and changes nothing, so it ends when the client disconnects."""
    media: str = "application/json"
    """Of its answers."""
