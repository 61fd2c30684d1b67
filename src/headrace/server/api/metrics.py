"""`/metrics`: the figures for Prometheus, read from the store at most once a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

import msgspec
from starlette.responses import Response

from headrace.model.lease import Presence
from headrace.model.records import LimitRule, QueueStats
from headrace.operate.held import HeldJobs
from headrace.server import visibility
from headrace.server.api.queues import seconds
from headrace.server.http.call import Call
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.sink import figures as sink_figures
from headrace.supervisor.series import MOST_LIMITS, SECONDS, Family, Series, family_lines

_Read = Callable[[QueueStats], float]
_METRICS: tuple[tuple[str, str, str, _Read], ...] = (
    ("headrace_jobs_ready", "gauge", "Jobs that wait to be claimed.", lambda queue: queue.ready),
    ("headrace_jobs_scheduled", "gauge", "Jobs that are due later, retries included.", lambda queue: queue.scheduled),
    ("headrace_jobs_blocked", "gauge", "Jobs that wait for other jobs or for an event.", lambda queue: queue.blocked),
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

_WAIT, _RUN = range(2)
TIMES = (
    Family(
        "headrace_wait_seconds",
        "Time between the enqueue of a job and the start of its first attempt.",
        ("queue", "task"),
        SECONDS,
    ),
    Family("headrace_run_seconds", "Time that attempts ran.", ("queue", "task"), SECONDS),
)
_CONCURRENCY = Family("headrace_limit_concurrency", "Units of a limit that may be held at once now.", ("limit",), ())
_RATE = Family("headrace_limit_rate", "Units of a limit per second now.", ("limit",), ())
_CLOSED = Family(
    "headrace_limit_closed", "Whether the limit is closed, or opens with one job at a time.", ("limit",), ()
)


_HELD = Family(
    "headrace_jobs_held",
    "Blocked jobs that wait for a dead job, or for a group with one. The 50 newest dead letters are read.",
    ("queue",),
    (),
)
_HELD_SECONDS = Family(
    "headrace_oldest_held_seconds", "Time since the death of the first job for which they wait.", ("queue",), ()
)


class Shown(msgspec.Struct, kw_only=True):
    """What the caller may see."""

    queues: Sequence[QueueStats] = ()
    workers: Sequence[Presence] = ()
    limits: Mapping[str, LimitRule] = {}
    held: Mapping[str, HeldJobs] = {}
    held_at_least: bool = False
    now: datetime | None = None
    """The clock of the store, where jobs are held."""
    times: Sequence[Series] = ()
    """Waits at the place 0 of TIMES, runs at the place 1."""


def exposition(shown: Shown) -> str:
    """The figures in Prometheus' text format; no name of a queue, task or limit needs escaping."""
    return "\n".join(_lines(shown)) + "\n"


def _lines(shown: Shown) -> Iterator[str]:
    for name, kind, help_, read in _METRICS:
        yield f"# HELP {name} {help_}"
        yield f"# TYPE {name} {kind}"
        for queue in shown.queues:
            yield f'{name}{{queue="{queue.queue}"}} {read(queue)}'
    yield from family_lines(_HELD, [Series(0, (queue,), held.count) for queue, held in sorted(shown.held.items())])
    yield from family_lines(_HELD_SECONDS, [Series(0, (queue,), age) for queue, age in _ages(shown)])
    at_least = "1: there are more dead letters or held jobs than were read, so more jobs may be held."
    yield from _gauge("headrace_jobs_held_at_least", at_least, int(shown.held_at_least))
    yield from _gauge("headrace_workers", "Worker processes seen within the last minute.", len(shown.workers))
    yield from _gauge("headrace_slots", "Jobs that they may run at once.", sum(one.slots for one in shown.workers))
    busy = sum(worker.running for worker in shown.workers)
    yield from _gauge("headrace_slots_busy", "Jobs that they run, as of their last heartbeat.", busy)
    memory = [worker.memory for worker in shown.workers if worker.memory is not None]
    yield from _gauge("headrace_memory_bytes", "Memory that they occupy, as of their last heartbeat.", sum(memory))
    most = max(memory, default=0)
    yield from _gauge("headrace_memory_bytes_most", "Memory of the worker that occupies most.", most)
    # A key of a limit, such as `shop:acme`, has no series, because the number of keys has no bound.
    named = ((name, rule) for name, rule in shown.limits.items() if ":" not in name)
    limits = list(islice(named, MOST_LIMITS))
    for family, values in (
        (_CONCURRENCY, [(name, rule.concurrency) for name, rule in limits]),
        (_RATE, [(name, rule.rate) for name, rule in limits]),
        (_CLOSED, [(name, int(rule.closed_until is not None)) for name, rule in limits]),
    ):
        yield from family_lines(family, [Series(0, (name,), value) for name, value in values if value is not None])
    for place, family in enumerate(TIMES):
        yield from family_lines(family, sorted(series for series in shown.times if series.family == place))


def _ages(shown: Shown) -> Iterator[tuple[str, float]]:
    for queue, held in sorted(shown.held.items()):
        if held.since is not None and shown.now is not None:
            yield queue, max(0.0, (shown.now - held.since).total_seconds())


def _gauge(name: str, text: str, value: int) -> tuple[str, str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"


async def metrics(call: Call) -> Response:
    """GET /metrics"""
    figures, principal = call.service.figures, call.principal
    times = await figures.times()
    held = await figures.held()
    shown = Shown(
        held={queue: jobs for queue, jobs in held.queues.items() if principal.sees(queue, None)},
        # Dead letters of all queues and tenants are counted for this.
        held_at_least=held.at_least and not principal.bound,
        now=await call.service.store.now() if held.queues else None,
        queues=visibility.stats(principal, await figures.stats()),
        workers=visibility.workers(principal, await figures.workers()),
        # A limit does not belong to a queue or a tenant, so a bound token sees no limits.
        limits={} if principal.bound else await figures.limits(),
        times=[series for series in times.series(_WAIT, _RUN) if principal.sees(series.labels[0], None)],
    )
    text = exposition(shown)
    if not principal.bound:
        # The rows of a sink are those of all queues and tenants.
        text += sink_figures.exposition(await figures.sinks())
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


ENDPOINTS = (
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
