"""`/v1/history`: what became of attempts over time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.operate.history import HistoryAnswer, HistoryBy
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which part of the history."""

    by: HistoryBy = "queue"
    """What the points are divided by: `queue`, `task` or `end`."""
    since: str = "1h"
    """The beginning: an age such as `6h`, or a time with its distance from UTC."""
    until: str | None = None
    """The end, in the same form. Left out: now."""
    step: str | None = None
    """The length of a step, such as `5m`. Left out: one that gives at most 120 steps. For times before yesterday, it is at least
    an hour, and for times of more than a week ago at least a day. `all`: one step for the whole time, because percentiles of several steps cannot be added up."""
    queue: str | None = None
    """This queue only."""
    task: str | None = None
    """This task only."""
    times: bool = True
    """`false`: without percentiles, which is several times cheaper. They are null."""


async def show(call: Call) -> Response:
    """GET /v1/history"""
    query: HistoryQuery = call.query
    principal = call.principal
    if principal.tenant is not None:
        raise not_found("history counts the jobs of all tenants: a token that is bound to a tenant cannot read it")
    now = await call.service.store.now()
    try:
        history = await call.operations.history.read(
            read_time(query.since, now, "since"),
            None if query.until is None else read_time(query.until, now, "until"),
            by=query.by,
            step=_step(query.step),
            queue=query.queue,
            task=query.task,
            times=query.times,
            sees=lambda queue: principal.sees(queue, None),
        )
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error)) from None
    return answer(history)


def _step(text: str | None) -> timedelta | Literal["all"] | None:
    """The length of a step. Raises ConfigError."""
    if text is None:
        return None
    return "all" if text == "all" else duration.parse(text, name="step")


def read_time(text: str, now: datetime, name: str) -> datetime:
    """An age, or a time. Raises ConfigError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return now - min(duration.parse(text, name=name), timedelta(days=366))
    if at.tzinfo is None:
        raise ConfigError(f"{name} needs a time zone, for example 2026-11-15T09:00:00+01:00")
    return at


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/history",
        scope=Scope.READ,
        does="Show how many attempts ended in which way over time, with percentiles of wait and run time.",
        handler=show,
        looks=1,
        long=True,
        query=HistoryQuery,
        answers={200: HistoryAnswer},
        problems=((404, "not_found"), (422, "invalid_value")),
    ),
)
