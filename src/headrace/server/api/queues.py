"""`/v1/queues`: the figures of every queue; pause and resume."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from starlette.responses import Response

from headrace.model.lane import check_queue
from headrace.model.records import Pause, QueueStats
from headrace.server import visibility
from headrace.server.api import pauses
from headrace.server.api.job_request import check
from headrace.server.api.pauses import Turned
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope


class QueueView(msgspec.Struct, kw_only=True):
    """The figures of a queue."""

    name: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    dead: int = 0
    done_total: int = 0
    failed_total: int = 0
    enqueued_total: int = 0
    oldest_ready: float | None = None
    """Seconds that the longest waiting ready job has waited."""
    oldest_at_least: bool = False
    """The queue has too many lanes, so the store did not read all of them for `oldest_ready`. A job may be older."""
    paused: bool = False
    paused_by: str | None = None
    paused_since: datetime | None = None
    paused_until: datetime | None = None
    """null while the queue is paused: until an operator resumes it."""
    max_length: int | None = None
    foreign: bool = False
    declared: bool = False


class Queues(msgspec.Struct):
    """Every queue that has jobs, totals or a pause, or that the app declares, by name."""

    items: list[QueueView]
    next: None = None
    """The list is whole, so there is no next page."""


async def all_of(call: Call) -> Response:
    """GET /v1/queues"""
    service, app = call.service, call.service.app
    stats = {queue.queue: queue for queue in (await service.figures.stats()).queues}
    paused = {pause.name: pause for pause in await service.figures.pauses() if pause.kind == "queue"}
    names = {*stats, *paused, *app.queues, *(task.options.queue for task in app.tasks.values())}
    seen = sorted(name for name in names if call.principal.sees(name, None))
    views = [_view(name, stats.get(name) or QueueStats(queue=name), paused.get(name)) for name in seen]
    for view in views:
        if (declared := app.queues.get(view.name)) is not None:
            view.max_length, view.foreign, view.declared = declared.max_length, declared.foreign, True
    return answer(Queues(views))


def _view(name: str, stats: QueueStats, pause: Pause | None) -> QueueView:
    return QueueView(
        name=name,
        ready=stats.ready,
        scheduled=stats.scheduled,
        running=stats.running,
        dead=stats.dead,
        done_total=stats.done_total,
        failed_total=stats.failed_total,
        enqueued_total=stats.enqueued_total,
        oldest_ready=seconds(stats.oldest_ready),
        oldest_at_least=stats.oldest_at_least,
        paused=pause is not None,
        paused_by=None if pause is None else pause.by,
        paused_since=None if pause is None else pause.since,
        paused_until=None if pause is None else pause.until,
    )


def seconds(value: timedelta | None) -> float | None:
    return None if value is None else round(value.total_seconds(), 3)


class QueuePauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Until when."""

    until: str | None = None
    """A time, or a duration from now; left out: until it is resumed."""


async def pause(call: Call) -> Response:
    """POST /v1/queues/{name}/pause"""
    asked: QueuePauseRequest = call.body
    name = _name(call)
    until = await pauses.pause_now(call, "queue", name, asked.until)
    return answer(Turned(kind="queue", name=name, paused=True, until=until))


async def resume(call: Call) -> Response:
    """POST /v1/queues/{name}/resume"""
    name = _name(call)
    await pauses.resume_now(call, "queue", name)
    return answer(Turned(kind="queue", name=name, paused=False))


def _name(call: Call) -> str:
    name = check(check_queue, call.path["name"], "invalid_queue_name", "name")
    visibility.queue(call.principal, name)
    return name


_NAMED = ((404, "not_found"), (422, "invalid_queue_name"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/queues",
        scope=Scope.READ,
        does="Show the figures of every queue. The answer may be a second old.",
        handler=all_of,
        answers={200: Queues},
        looks=1,
    ),
    Endpoint(
        method="POST",
        path="/v1/queues/{name}/pause",
        scope=Scope.OPERATE,
        does="Start no more jobs of this queue. Running jobs continue.",
        handler=pause,
        body=QueuePauseRequest,
        answers={200: Turned},
        problems=(*_NAMED, (422, "invalid_value")),
    ),
    Endpoint(
        method="POST",
        path="/v1/queues/{name}/resume",
        scope=Scope.OPERATE,
        does="Let the jobs of this queue start again.",
        handler=resume,
        answers={200: Turned},
        problems=_NAMED,
    ),
)
