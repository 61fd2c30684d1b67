"""`/v1/audit`: what operators did."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found
from headrace.store.audit import KEPT, Audit, AuditEntry

__all__ = ["ENDPOINTS", "Audit", "AuditEntry", "AuditPage", "AuditQuery"]


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which entries."""

    since: str = "7d"
    """How far to look back, such as `7d`; entries are kept for 90 days."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class AuditPage(msgspec.Struct, kw_only=True):
    """Entries, the newest first."""

    items: list[AuditEntry]
    next: None = None
    """There is no next page: `since` and `limit` say how far the list goes back."""


async def show(call: Call) -> Response:
    """GET /v1/audit"""
    query: AuditQuery = call.query
    if call.principal.bound:
        raise not_found(
            "the audit log covers all tenants: a token that is bound to a tenant or to queues cannot read it"
        )
    try:
        back = min(duration.parse(query.since, name="since"), KEPT + timedelta(days=1))
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path="since") from None
    service = call.service
    entries = await service.audit.read(await service.store.now() - back, limit=query.limit)
    return answer(AuditPage(items=entries))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/audit",
        scope=Scope.ADMIN,
        does="List what operators did: the author, the action, the time and the number of jobs.",
        handler=show,
        looks=1,
        long=True,
        query=AuditQuery,
        answers={200: AuditPage},
        problems=((404, "not_found"), (422, "invalid_value")),
    ),
)
