"""`/v1/session`: exchanges a token for a cookie, so that a browser stays signed in without keeping the token."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from starlette.responses import Response

from headrace.server.auth import refused
from headrace.server.http.call import Call, answer, nothing
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.sessions import BrowserSession, set_cookie


class SessionView(msgspec.Struct, kw_only=True):
    """The caller, and what it may do and see."""

    name: str
    """The name of the token. Without tokens it is `local`."""
    scopes: list[Scope]
    """`admin` includes the others."""
    tenant: str | None
    """The tenant that the token is bound to. null: none."""
    queues: list[str] | None
    """The queues that the token is bound to. null: none."""
    expires_at: datetime | None
    """When the session ends. null: the call has no session cookie."""


def _view(call: Call, session: BrowserSession | None) -> SessionView:
    principal = call.principal
    return SessionView(
        name=principal.name,
        scopes=sorted(principal.scopes),
        tenant=principal.tenant,
        queues=None if principal.queues is None else sorted(principal.queues),
        expires_at=None if session is None else session.expires_at,
    )


def _signed_in(call: Call) -> BrowserSession | None:
    """The session that admitted this call. A token in the header takes precedence over a cookie."""
    if not call.principal.token_id or "authorization" in call.request.headers:
        return None
    return call.service.auth.session(call.request)


async def show(call: Call) -> Response:
    """GET /v1/session"""
    return answer(_view(call, _signed_in(call)))


async def sign_in(call: Call) -> Response:
    """POST /v1/session"""
    if _signed_in(call) is not None:
        # Otherwise a session could be renewed without end.
        raise refused("a session begins with a token: send it as the header Authorization: Bearer hr_…")
    started = call.service.auth.start(call.principal)
    if started is None:
        return answer(_view(call, None))
    session, value = started
    seconds = int((session.expires_at - await call.service.store.now()).total_seconds())
    cookie = set_cookie(call.request, value, max(1, seconds))
    return answer(_view(call, session), headers={"Set-Cookie": cookie})


async def sign_out(call: Call) -> Response:
    """DELETE /v1/session"""
    session = call.service.auth.session(call.request)
    if session is not None and session.token_id == call.principal.token_id:
        await call.service.auth.end(session)
    response = nothing()
    response.headers["Set-Cookie"] = set_cookie(call.request, "", 0)
    return response


_ANY: Final = (Scope.ENQUEUE, Scope.WORK, Scope.OPERATE)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/session",
        scope=Scope.READ,
        also=_ANY,
        does="Show the name of the caller, its scopes, and the tenant and queues that it is bound to.",
        handler=show,
        answers={200: SessionView},
    ),
    Endpoint(
        method="POST",
        path="/v1/session",
        scope=Scope.READ,
        also=_ANY,
        does="Exchange the token of this call for a session cookie, for browsers.",
        handler=sign_in,
        answers={200: SessionView},
    ),
    Endpoint(
        method="DELETE",
        path="/v1/session",
        scope=Scope.READ,
        also=_ANY,
        does="Sign out: end the session of this call's cookie.",
        handler=sign_out,
        answers={204: None},
    ),
)
