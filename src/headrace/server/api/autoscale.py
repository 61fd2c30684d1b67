"""`/v1/autoscale`: how soon queues drain, and how many worker processes they need."""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.records import QueueStats
from headrace.operate.autoscale import AutoscaleAnswer, closed_queues, demands
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem

SHORTEST_GOAL: Final = 1.0
"""Seconds. Figures are up to a second old, so a shorter goal has no meaning."""


class AutoscaleQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """For which queues, and how soon they should drain."""

    queue: str | None = None
    """This queue only."""
    within: str = "60s"
    """The time in which the jobs that wait should start, such as `60s`; at least a second."""
    max: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The largest number of workers that the answer may ask for."""


async def show(call: Call) -> Response:
    """GET /v1/autoscale"""
    query: AutoscaleQuery = call.query
    within = _goal(query.within)
    service, app = call.service, call.service.app
    figures = service.figures
    stats = {queue.queue: queue for queue in (await figures.stats()).queues}
    enqueued = service.arrivals.measure(time.monotonic(), {name: queue.enqueued_total for name, queue in stats.items()})
    names = {*stats, *app.queues, *(task.options.queue for task in app.tasks.values())}
    visible = sorted(name for name in names if query.queue in {None, name} and call.principal.sees(name, None))
    return answer(
        demands(
            [stats.get(name) or QueueStats(queue=name) for name in visible],
            recent=await figures.recent_work(),
            workers=await figures.workers(),
            slots=app.settings.concurrency,
            within=within,
            most=query.max,
            enqueued=enqueued,
            closed=closed_queues(app.queues.values()),
        )
    )


def _goal(text: str) -> float:
    try:
        seconds = duration.parse(text, name="within").total_seconds()
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error)) from None
    if seconds < SHORTEST_GOAL:
        raise Problem(422, "invalid_value", f"within = {text!r} is too short: write at least 1s")
    return seconds


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/autoscale",
        scope=Scope.READ,
        does="Show how soon queues drain and how many worker processes they need. The answer may be a second old.",
        handler=show,
        looks=1,
        query=AutoscaleQuery,
        answers={200: AutoscaleAnswer},
        problems=((422, "invalid_value"),),
    ),
)
