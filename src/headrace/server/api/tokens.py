"""`/v1/tokens`: list, make and revoke the tokens of the server."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.operate import tokens
from headrace.operate.tokens import TokenView
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found


class TokenList(msgspec.Struct):
    """Every token, the oldest first."""

    items: list[TokenView]
    next: None = None
    """The list is whole, so there is no next page."""


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A token to be made."""

    name: str
    """1 to 63 of A-Z a-z 0-9 _ . @ -, with a letter or a digit first."""
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=20)]
    """`admin` includes the others."""
    queues: Annotated[list[str], Meta(max_length=1000)] = []
    """The queues that it is bound to. Empty: none."""
    tenant: str | None = None
    """The tenant that it is bound to. null: none."""
    expires: str | None = None
    """After so long, such as `90d`. null: never."""


class NewToken(TokenView, kw_only=True):
    """The new token."""

    token: str
    """Its text, shown only here: `Authorization: Bearer hr_…`."""


def _check(call: Call) -> None:
    if call.principal.bound:
        raise not_found("tokens concern all tenants: a token that is bound to a tenant or to queues cannot see them")


async def all_of(call: Call) -> Response:
    """GET /v1/tokens"""
    _check(call)
    store = call.service.store
    now = await store.now()
    return answer(TokenList([tokens.shown(token, now) for token in await tokens.all(store)]))


async def create(call: Call) -> Response:
    """POST /v1/tokens"""
    _check(call)
    asked: TokenRequest = call.body
    try:
        text, token = await call.operations.tokens.create(
            asked.name, scopes=asked.scopes, queues=asked.queues, tenant=asked.tenant, expires=asked.expires
        )
    except ConfigError as error:
        raise Problem(422, "invalid_token_request", str(error)) from None
    call.service.auth.forget()
    view = tokens.shown(token, await call.service.store.now())
    return answer(NewToken(token=text, **msgspec.structs.asdict(view)), 201)


async def revoke(call: Call) -> Response:
    """DELETE /v1/tokens/{token}"""
    _check(call)
    id = call.path["token"]
    store = call.service.store
    if id not in {token.id for token in await tokens.all(store)}:
        raise _unknown()
    token = await call.operations.tokens.revoke(id)
    call.service.auth.forget()
    return answer(tokens.shown(token, await store.now()))


def _unknown() -> Problem:
    return Problem(404, "token_not_found", "there is no such token: /v1/tokens lists the ids")


_ALL: Final = ((404, "not_found"),)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/tokens",
        scope=Scope.ADMIN,
        does="List every token, without its secret: what it may do, and whether it is valid.",
        handler=all_of,
        looks=1,
        answers={200: TokenList},
        problems=_ALL,
    ),
    Endpoint(
        method="POST",
        path="/v1/tokens",
        scope=Scope.ADMIN,
        does="Make a token. The answer has its text, which the store does not keep.",
        handler=create,
        body=TokenRequest,
        answers={201: NewToken},
        problems=(*_ALL, (422, "invalid_token_request")),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/tokens/{token}",
        scope=Scope.ADMIN,
        does="Revoke a token by its id. Servers refuse it, and end its sessions, within a second.",
        handler=revoke,
        answers={200: TokenView},
        problems=(*_ALL, (404, "token_not_found")),
    ),
)
