"""`/v1/audit`: what operators did."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found
from headrace.store.audit import KEPT, Audit, AuditEntry, AuditPlace

__all__ = ["ENDPOINTS", "Audit", "AuditEntry", "AuditPage", "AuditQuery"]


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which entries."""

    since: str = "7d"
    """How far to look back, such as `7d`; entries are kept for 90 days."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    before: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The `next` of the page before."""
    text: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """A text in the author, the action or the subject."""


class AuditPage(msgspec.Struct, kw_only=True):
    """Entries, the newest first."""

    items: list[AuditEntry]
    next: str | None
    """The `before` of the next page. null: there is none."""


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
    since = await service.store.now() - back
    page = await service.audit.page(since, limit=query.limit, before=_place(query.before), text=query.text)
    following = None if page.next is None else f"{page.next.at.isoformat()}_{page.next.name}"
    return answer(AuditPage(items=page.entries, next=following))


def _place(text: str) -> AuditPlace | None:
    at, _, name = text.partition("_")
    if not text:
        return None
    try:
        place = AuditPlace(datetime.fromisoformat(at), name)
    except ValueError:
        place = None
    if place is None or place.at.tzinfo is None or not name:
        raise Problem(422, "invalid_value", "`before` is the `next` of a page", path="before")
    return place


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/audit",
        scope=Scope.ADMIN,
        does="List what operators did in pages: the author, the action, the time and the number of jobs.",
        handler=show,
        looks=1,
        long=True,
        query=AuditQuery,
        answers={200: AuditPage},
        problems=((404, "not_found"), (422, "invalid_value")),
    ),
)
