"""`/v1/changes`: what changed lately, for a reader that looks for a cause."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.operate.changes import changes
from headrace.server.api.view import text
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found

LONGEST = timedelta(days=7)


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Since when."""

    since: str = "1h"
    """How far to look back, such as `1h`; at most 7 days."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class ChangeView(msgspec.Struct, kw_only=True):
    """Something that may explain why figures changed."""

    at: datetime
    kind: str
    """`action`: what an operator did. `deploy`: workers that started. `failure`: a bug that jobs die of for the first time."""
    action: str
    """The action of the audit log such as `queues.pause`; `workers.start`; `failures.new`."""
    what: str
    by: str
    """The author of an action."""
    jobs: int
    """The jobs that an action changed, or that have died of the bug."""
    id: str
    """The fingerprint of the bug."""


class ChangeList(msgspec.Struct):
    """Changes, the newest first."""

    items: list[ChangeView]
    next: None = None
    """The list is whole, up to `limit`."""


async def show(call: Call) -> Response:
    """GET /v1/changes"""
    query: ChangesQuery = call.query
    if call.principal.bound:
        raise not_found("changes cover all tenants: a token that is bound to a tenant or to queues cannot read them")
    try:
        back = min(duration.parse(query.since, name="since"), LONGEST)
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path="since") from None
    service = call.service
    since = await service.store.now() - back
    audit, causes = service.audit, service.figures.causes
    items = [
        ChangeView(
            at=change.at,
            kind=change.kind,
            action=change.action,
            what=text(change.what),
            by=change.by,
            jobs=change.jobs,
            id=change.id,
        )
        for change in await changes(service.store, since, limit=query.limit, audit=audit, causes=causes)
    ]
    return answer(ChangeList(items))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/changes",
        scope=Scope.READ,
        does="List what changed lately: what operators did, workers that started, and failures that are new.",
        handler=show,
        looks=1,
        long=True,
        query=ChangesQuery,
        answers={200: ChangeList},
        problems=((404, "not_found"), (422, "invalid_value")),
    ),
)
