"""`/v1/stats` and `/metrics`: the figures, for programs and Prometheus, read from the store at most once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from starlette.responses import Response

from headrace.model.records import QueueStats
from headrace.server import visibility
from headrace.server.api.queues import seconds
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.sink import figures as sink_figures


class QueueFigures(msgspec.Struct, kw_only=True):
    """One queue."""

    queue: str
    ready: int
    scheduled: int
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
        running=queue.running,
        dead=queue.dead,
        done_total=queue.done_total,
        failed_total=queue.failed_total,
        enqueued_total=queue.enqueued_total,
        oldest_ready=seconds(queue.oldest_ready),
        oldest_at_least=queue.oldest_at_least,
        paused=queue.paused,
    )


# ── Prometheus ───────────────────────────────────────────────────────────────

_Read = Callable[[QueueStats], float]
_METRICS: tuple[tuple[str, str, str, _Read], ...] = (
    ("headrace_jobs_ready", "gauge", "Jobs that wait to be claimed.", lambda queue: queue.ready),
    ("headrace_jobs_scheduled", "gauge", "Jobs that are due later, retries included.", lambda queue: queue.scheduled),
    ("headrace_jobs_running", "gauge", "Jobs that run.", lambda queue: queue.running),
    ("headrace_jobs_dead", "gauge", "Dead letters kept.", lambda queue: queue.dead),
    ("headrace_jobs_done_total", "counter", "Jobs done, ever.", lambda queue: queue.done_total),
    ("headrace_jobs_failed_total", "counter", "Attempts failed, ever.", lambda queue: queue.failed_total),
    ("headrace_jobs_enqueued_total", "counter", "Jobs enqueued, ever.", lambda queue: queue.enqueued_total),
    (
        "headrace_oldest_ready_seconds",
        "gauge",
        "Age of the longest waiting ready job.",
        lambda queue: seconds(queue.oldest_ready) or 0,
    ),
    (
        "headrace_oldest_ready_at_least",
        "gauge",
        "1: the queue has too many lanes to read all of them, so its longest waiting job may be older.",
        lambda queue: int(queue.oldest_at_least),
    ),
    ("headrace_queue_paused", "gauge", "Whether the queue is paused.", lambda queue: int(queue.paused)),
)


def exposition(queues: Iterable[QueueStats]) -> str:
    """The figures in Prometheus' text format; queue names need no escaping."""
    known = list(queues)
    lines: list[str] = []
    for name, kind, help_, read in _METRICS:
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{queue="{queue.queue}"}} {read(queue)}' for queue in known]
    return "\n".join(lines) + "\n"


async def metrics(call: Call) -> Response:
    """GET /metrics"""
    text = exposition(await _seen(call))
    if not call.principal.bound:
        # The rows of a sink are those of all queues and tenants.
        text += sink_figures.exposition(await call.service.figures.sinks())
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


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
    Endpoint(
        method="GET",
        path="/metrics",
        scope=Scope.READ,
        does="Show the figures in the text format of Prometheus.",
        handler=metrics,
        answers={200: str},
        looks=1,
        media="text/plain",
    ),
)
