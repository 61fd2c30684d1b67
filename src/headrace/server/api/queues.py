"""`/v1/queues`: the figures of every queue; pause and resume."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from headrace.model.lane import check_queue
from headrace.model.records import Pause, QueueStats
from headrace.operate.autoscale import closed_queues, demands
from headrace.operate.queue_detail import detail as read_detail
from headrace.policy.queue import QueueOptions
from headrace.server import visibility
from headrace.server.api import pauses
from headrace.server.api.job_request import check
from headrace.server.api.pauses import Turned
from headrace.server.auth import Principal
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import not_found

if TYPE_CHECKING:
    from headrace.server.state import ServerState


class QueueView(msgspec.Struct, kw_only=True):
    """The figures of a queue."""

    name: str
    ready: int = 0
    scheduled: int = 0
    blocked: int = 0
    """Jobs that wait for other jobs or for an event."""
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
    return answer(Queues(await views(call.service, call.principal)))


async def views(service: ServerState, principal: Principal) -> list[QueueView]:
    """The queues that the caller may see, by name."""
    app = service.app
    stats = {queue.queue: queue for queue in (await service.figures.stats()).queues}
    paused = {pause.name: pause for pause in await service.figures.pauses() if pause.kind == "queue"}
    names = {*stats, *paused, *app.queues, *(task.options.queue for task in app.tasks.values())}
    seen = sorted(name for name in names if principal.sees(name, None))
    return [
        QueueView(**_figures(stats.get(name) or QueueStats(queue=name), paused.get(name), app.queues.get(name)))
        for name in seen
    ]


def _figures(stats: QueueStats, pause: Pause | None, declared: QueueOptions | None) -> dict[str, Any]:
    """The fields of a QueueView."""
    return {
        "name": stats.queue,
        "ready": stats.ready,
        "scheduled": stats.scheduled,
        "blocked": stats.blocked,
        "running": stats.running,
        "dead": stats.dead,
        "done_total": stats.done_total,
        "failed_total": stats.failed_total,
        "enqueued_total": stats.enqueued_total,
        "oldest_ready": seconds(stats.oldest_ready),
        "oldest_at_least": stats.oldest_at_least,
        "paused": pause is not None,
        "paused_by": None if pause is None else pause.by,
        "paused_since": None if pause is None else pause.since,
        "paused_until": None if pause is None else pause.until,
        "max_length": None if declared is None else declared.max_length,
        "foreign": declared is not None and declared.foreign,
        "declared": declared is not None,
    }


def seconds(value: timedelta | None) -> float | None:
    return None if value is None else round(value.total_seconds(), 3)


class TenantShare(msgspec.Struct, kw_only=True):
    """The jobs of one tenant in a queue."""

    tenant: str
    """Empty: jobs without a tenant."""
    ready: int
    """Jobs that wait. Of one lane at most 10,000 are counted."""
    oldest: float | None
    """Seconds that the first of them has waited."""
    running: int
    """Of the running jobs that were read."""
    share: float | None
    """Its part of the running jobs that were read, from 0 to 1; null: none runs."""
    weight: int
    """The jobs in its turn."""
    paused: bool


class TaskShare(msgspec.Struct, kw_only=True):
    """The jobs of one task in a queue, of those that were read."""

    task: str
    ready: int
    running: int
    paused: bool


class QueueDetailView(QueueView, kw_only=True):
    """One queue: its figures, and which tenants and tasks wait and run."""

    fair: str | None
    """How tenants share the queue; null: the server's app does not declare it."""
    open_hours: str | None
    """The hours in which jobs may start; null: always."""
    workers: int
    """The workers that serve it."""
    seconds_to_drain: float | None
    """Seconds until the jobs that wait now have started, at the present pace; 0: none waits; null: not known."""
    tenants: list[TenantShare]
    """The 20 tenants with the most waiting jobs."""
    all_tenants: int
    """How many tenants wait or run."""
    tasks: list[TaskShare]
    """The 20 tasks with the most jobs, of 1,000 waiting and 1,000 running ones."""
    limits: list[str]
    """The names of limits that these jobs need. A bound token does not see them."""
    whole: bool
    """Whether all jobs that wait or run were read. Otherwise tasks, shares and limits are those of a part."""


async def one(call: Call) -> Response:
    """GET /v1/queues/{name}"""
    name, service = _name(call), call.service
    app, figures = service.app, service.figures
    stats = {queue.queue: queue for queue in (await figures.stats()).queues}
    pauses_now = [pause for pause in await figures.pauses() if visibility.pause(call.principal, pause) is not None]
    paused = {(pause.kind, pause.name): pause for pause in pauses_now}
    declared = app.queues.get(name)
    served = {*app.queues, *(task.options.queue for task in app.tasks.values())}
    if name not in stats and name not in served and ("queue", name) not in paused:
        raise not_found("there is no such queue")
    queue = stats.get(name) or QueueStats(queue=name)
    detail = await read_detail(service.store, name)
    now = await service.store.now()
    workers = await figures.workers()
    [demand] = demands(
        [queue],
        recent=await figures.recent_work(),
        workers=workers,
        slots=app.settings.concurrency,
        closed=closed_queues(app.queues.values()),
    ).items
    running = sum(tenant.running for tenant in detail.tenants)
    weights: Mapping[str, int] = {} if declared is None else declared.weights
    view = QueueDetailView(
        **_figures(queue, paused.get(("queue", name)), declared),
        fair=None if declared is None else declared.fair,
        open_hours=None if declared is None or declared.open is None else str(declared.open),
        workers=sum(name in worker.queues for worker in workers),
        seconds_to_drain=demand.seconds_to_drain,
        tenants=[
            TenantShare(
                tenant=tenant.tenant,
                ready=tenant.ready,
                oldest=seconds(None if tenant.oldest is None else now - tenant.oldest),
                running=tenant.running,
                share=round(tenant.running / running, 4) if running else None,
                weight=weights.get(tenant.tenant, 1),
                paused=("tenant", tenant.tenant) in paused,
            )
            for tenant in detail.tenants
        ],
        all_tenants=detail.all_tenants,
        tasks=[
            TaskShare(task=task.task, ready=task.ready, running=task.running, paused=("task", task.task) in paused)
            for task in detail.tasks
        ],
        limits=[] if call.principal.bound else detail.limits,
        whole=detail.whole,
    )
    return answer(view)


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
        method="GET",
        path="/v1/queues/{name}",
        scope=Scope.READ,
        does="Show one queue: its figures, and which tenants and tasks wait and run.",
        handler=one,
        looks=1,
        long=True,
        answers={200: QueueDetailView},
        problems=_NAMED,
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
