"""`/v1/report`: failure rates, run times, the use of slots and the run seconds of tenants."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.operate.report import WorkReport
from headrace.server.api.history import read_time
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem


class ReportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The time of the report."""

    since: str = "30d"
    """The beginning: an age such as `90d`, or a time with its distance from UTC."""
    until: str | None = None
    """The end, in the same form. Left out: now."""
    queue: str | None = None
    """This queue only."""


async def show(call: Call) -> Response:
    """GET /v1/report"""
    query: ReportQuery = call.query
    principal = call.principal
    now = await call.service.store.now()
    try:
        since = read_time(query.since, now, "since")
        until = None if query.until is None else read_time(query.until, now, "until")
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error)) from None
    report = await call.operations.report.read(
        since,
        until,
        queue=query.queue,
        sees=lambda queue: principal.queues is None or queue in principal.queues,
        tenant=principal.tenant,
    )
    return answer(report)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/report",
        scope=Scope.READ,
        does="Show how often tasks failed, how long they ran, how busy the slots were, and which tenant used them.",
        handler=show,
        looks=1,
        long=True,
        query=ReportQuery,
        answers={200: WorkReport},
        problems=((422, "invalid_value"),),
    ),
)
