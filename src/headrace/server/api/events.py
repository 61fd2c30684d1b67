"""`/v1/events` and `/v1/jobs/{id}/events`: what happens, as server-sent events."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from headrace.model.job import JobState
from headrace.server import visibility
from headrace.server.api.queues import Queues, views
from headrace.server.api.results import shown
from headrace.server.auth import check_origin
from headrace.server.events import follow, tail
from headrace.server.events.feed import MEDIA, event
from headrace.server.http.call import Call, nothing
from headrace.server.http.endpoint import Endpoint, Scope


async def follow_one(call: Call) -> Response:
    """GET /v1/jobs/{id}/events"""
    check_origin(call.request)
    id = call.job_id
    job = await call.service.hub.look(id)
    if job is None or not visibility.sees(call.principal, job):
        raise visibility.no_job()
    heard = follow.read_id(call.request.headers.get("last-event-id"))
    if heard.over and job.state.finished and job.attempt == heard.attempt:
        # A 204 tells a browser not to connect again.
        return nothing()
    return call.service.hub.follow(id, heard, shown, call.still_welcome)


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which events, and which ends to report. All given conditions must hold."""

    event: list[Literal["ended", "stats"]] = []
    """`ended`: the ends of jobs, which is the default. `stats`: the figures of every queue when they change, at most once a
    second."""
    queue: str | None = None
    task: str | None = None
    state: JobState | None = None
    """done, dead or cancelled."""


async def follow_all(call: Call) -> Response:
    """GET /v1/events"""
    check_origin(call.request)
    query: EventsQuery = call.query
    principal = call.principal
    after = tail.read_id(call.request.headers.get("last-event-id"))

    async def figures() -> bytes:
        return event("stats", Queues(await views(call.service, principal)))

    return await call.service.hub.follow_all(
        tail.EndFilter(query.queue, query.task, query.state, principal if principal.bound else None)
        if "ended" in query.event or not query.event
        else None,
        after,
        call.still_welcome,
        figures=figures if "stats" in query.event else None,
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}/events",
        scope=Scope.ENQUEUE,
        also=(Scope.READ,),
        does="Follow one job until it ends. The events are `state`, `progress` and `log`, and `end` as the last. "
        "Last-Event-ID continues a broken stream; 204 means that the client already knows the end.",
        handler=follow_one,
        answers={200: str, 204: None},
        problems=((403, "csrf"), (404, "job_not_found"), (422, "invalid_job_id")),
        media=MEDIA,
    ),
    Endpoint(
        method="GET",
        path="/v1/events",
        scope=Scope.READ,
        does="Follow the ends of all jobs. The events are `ended`, and `skipped` with a count when there are too many. "
        "Last-Event-ID continues a broken stream. With `event=stats` also the figures of queues, as `stats`.",
        handler=follow_all,
        query=EventsQuery,
        answers={200: str},
        problems=((403, "csrf"),),
        media=MEDIA,
    ),
)
