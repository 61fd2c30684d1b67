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
            ready=sum(each.ready for each in queues),
            scheduled=sum(each.scheduled for each in queues),
            running=sum(each.running for each in queues),
            dead=sum(each.dead for each in queues),
            done_total=sum(each.done_total for each in queues),
            failed_total=sum(each.failed_total for each in queues),
            enqueued_total=sum(each.enqueued_total for each in queues),
            queues=[_figures(each) for each in queues],
        )
    )


def _figures(each: QueueStats) -> QueueFigures:
    return QueueFigures(
        queue=each.queue,
        ready=each.ready,
        scheduled=each.scheduled,
        running=each.running,
        dead=each.dead,
        done_total=each.done_total,
        failed_total=each.failed_total,
        enqueued_total=each.enqueued_total,
        oldest_ready=seconds(each.oldest_ready),
        oldest_at_least=each.oldest_at_least,
        paused=each.paused,
    )


# ── Prometheus ───────────────────────────────────────────────────────────────

_Read = Callable[[QueueStats], float]
_METRICS: tuple[tuple[str, str, str, _Read], ...] = (
    ("headrace_jobs_ready", "gauge", "Jobs that wait to be claimed.", lambda each: each.ready),
    ("headrace_jobs_scheduled", "gauge", "Jobs that are due later, retries included.", lambda each: each.scheduled),
    ("headrace_jobs_running", "gauge", "Jobs that run.", lambda each: each.running),
    ("headrace_jobs_dead", "gauge", "Dead letters kept.", lambda each: each.dead),
    ("headrace_jobs_done_total", "counter", "Jobs done, ever.", lambda each: each.done_total),
    ("headrace_jobs_failed_total", "counter", "Attempts failed, ever.", lambda each: each.failed_total),
    ("headrace_jobs_enqueued_total", "counter", "Jobs enqueued, ever.", lambda each: each.enqueued_total),
    (
        "headrace_oldest_ready_seconds",
        "gauge",
        "Age of the longest waiting ready job.",
        lambda each: seconds(each.oldest_ready) or 0,
    ),
    (
        "headrace_oldest_ready_at_least",
        "gauge",
        "1: the queue has too many lanes to read all of them, so its longest waiting job may be older.",
        lambda each: int(each.oldest_at_least),
    ),
    ("headrace_queue_paused", "gauge", "Whether the queue is paused.", lambda each: int(each.paused)),
)


def exposition(queues: Iterable[QueueStats]) -> str:
    """The figures in Prometheus' text format; queue names need no escaping."""
    known = list(queues)
    lines: list[str] = []
    for name, kind, help_, read in _METRICS:
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{queue="{each.queue}"}} {read(each)}' for each in known]
    return "\n".join(lines) + "\n"


async def metrics(call: Call) -> Response:
    """GET /metrics"""
    return Response(exposition(await _seen(call)), media_type="text/plain; version=0.0.4; charset=utf-8")


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
