"""`/v1/stats`: the figures for programs, read from the store at most once a second."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from headrace.model.records import QueueStats
from headrace.server import visibility
from headrace.server.api.queues import seconds
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope


class QueueFigures(msgspec.Struct, kw_only=True):
    """One queue."""

    queue: str
    ready: int
    scheduled: int
    blocked: int
    """Jobs that wait for other jobs or for an event."""
    running: int
    dead: int
    done_total: int
    failed_total: int
    enqueued_total: int
    oldest_ready: float | None
    """In seconds."""
    oldest_at_least: bool
    """The queue has too many lanes, so the store did not read all of them for `oldest_ready`. A job may be older."""
    paused: bool


class Figures(msgspec.Struct, kw_only=True):
    """The figures of all queues together, and of each."""

    ready: int
    scheduled: int
    blocked: int
    running: int
    dead: int
    done_total: int
    failed_total: int
    enqueued_total: int
    queues: list[QueueFigures]


async def _seen(call: Call) -> list[QueueStats]:
    return visibility.stats(call.principal, await call.service.figures.stats())


async def stats(call: Call) -> Response:
    """GET /v1/stats"""
    queues = await _seen(call)
    return answer(
        Figures(
            ready=sum(queue.ready for queue in queues),
            scheduled=sum(queue.scheduled for queue in queues),
            blocked=sum(queue.blocked for queue in queues),
            running=sum(queue.running for queue in queues),
            dead=sum(queue.dead for queue in queues),
            done_total=sum(queue.done_total for queue in queues),
            failed_total=sum(queue.failed_total for queue in queues),
            enqueued_total=sum(queue.enqueued_total for queue in queues),
            queues=[_figures(queue) for queue in queues],
        )
    )


def _figures(queue: QueueStats) -> QueueFigures:
    return QueueFigures(
        queue=queue.queue,
        ready=queue.ready,
        scheduled=queue.scheduled,
        blocked=queue.blocked,
        running=queue.running,
        dead=queue.dead,
        done_total=queue.done_total,
        failed_total=queue.failed_total,
        enqueued_total=queue.enqueued_total,
        oldest_ready=seconds(queue.oldest_ready),
        oldest_at_least=queue.oldest_at_least,
        paused=queue.paused,
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/stats",
        scope=Scope.READ,
        does="Show the figures of all queues, as sums and per queue. The answer may be a second old.",
        handler=stats,
        answers={200: Figures},
        looks=1,
    ),
)
