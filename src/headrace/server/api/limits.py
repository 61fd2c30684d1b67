"""`/v1/limits`: show what limits allow now, and replace their declared figures."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError, LimitNotFound
from headrace.operate.limits import LimitEntry, Limits, check_limit, figures
from headrace.server.api.job_request import check, read_options
from headrace.server.http.call import Call, answer, read_id
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem
from headrace.task.limit import LimitFigures
from headrace.task.limit_options import FIGURE_OPTIONS
from headrace.task.option import OptionBody, body


class LimitView(msgspec.Struct, kw_only=True):
    """A limit, or one key of it such as `shop:acme`."""

    name: str
    declared: LimitFigures | None
    override: LimitFigures | None
    """Set by an operator, in place of the declared ones."""
    concurrency: int | None
    """Units held at once, right now."""
    rate: float | None
    """Units per second, right now."""
    burst: float
    closed_until: datetime | None
    half_open: bool
    """It was closed, and one job at a time runs until one succeeds."""


class LimitList(msgspec.Struct):
    """Every limit, by name."""

    items: list[LimitView]
    next: None = None
    """The list is whole, so there is no next page."""


class LimitAnswer(msgspec.Struct):
    """The limit now. null: no code declares it, so it was removed."""

    limit: LimitView | None


class LimitBody(OptionBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """New figures, at least one."""


if TYPE_CHECKING:
    LimitRequest: TypeAlias = LimitBody
else:
    LimitRequest = body(LimitBody, FIGURE_OPTIONS, "LimitRequest")


def _view(entry: LimitEntry) -> LimitView:
    return LimitView(
        name=entry.name,
        declared=entry.declared,
        override=entry.override,
        concurrency=entry.rule.concurrency,
        rate=entry.rule.rate,
        burst=entry.rule.burst,
        closed_until=entry.rule.closed_until,
        half_open=entry.half_open,
    )


async def all_of(call: Call) -> Response:
    """GET /v1/limits"""
    # A limit does not belong to a queue or a tenant, so a bound token sees no limits.
    entries: dict[str, Any] = {} if call.principal.bound else await Limits(call.service.store).all()
    return answer(LimitList([_view(entry) for entry in entries.values()]))


def _name(call: Call) -> str:
    name = check(check_limit, call.path["name"], "invalid_limit_name", "name")
    if call.principal.bound:
        raise _unknown()
    return name


def _unknown() -> Problem:
    return Problem(404, "limit_not_found", "there is no such limit: it exists once a worker that declares it has run")


async def put(call: Call) -> Response:
    """PUT /v1/limits/{name}"""
    asked: LimitRequest = call.body
    name = _name(call)
    options = read_options(FIGURE_OPTIONS, asked.given())
    try:
        entry = await call.operations.limits.set(name, figures(name, **options))
    except LimitNotFound:
        raise _unknown() from None
    except ConfigError as error:
        raise Problem(422, "invalid_limit", str(error)) from None
    return answer(LimitAnswer(_view(entry)))


async def reset(call: Call) -> Response:
    """DELETE /v1/limits/{name}"""
    name = _name(call)
    try:
        entry = await call.operations.limits.reset(name)
    except LimitNotFound:
        raise _unknown() from None
    return answer(LimitAnswer(None if entry is None else _view(entry)))


class HoldersQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which page of holders."""

    before: str | None = None
    """The `next` of the page before."""


class HolderView(msgspec.Struct, kw_only=True):
    """A running job that holds units of a limit."""

    id: UUID
    task: str
    queue: str
    tenant: str
    key: str
    """The key whose units it holds: the limit's name, or one key of it such as `shop:acme`."""
    units: int
    since: datetime | None
    """When a worker claimed it."""
    worker: UUID | None


class HolderPage(msgspec.Struct, kw_only=True):
    """Running jobs that hold units of a limit, the newest first."""

    items: list[HolderView]
    held: dict[str, int]
    """The units that these jobs hold, by key."""
    looked_at: int
    """The running jobs that were read. One call reads about 2,000."""
    next: UUID | None
    """Give it as `before` for the next page. null: this was the last page."""


async def holders(call: Call) -> Response:
    """GET /v1/limits/{name}/holders"""
    query: HoldersQuery = call.query
    before = None if query.before is None else read_id(query.before)
    try:
        page = await Limits(call.service.store).holders(_name(call), before=before)
    except LimitNotFound:
        raise _unknown() from None
    items = [HolderView(**msgspec.structs.asdict(holder)) for holder in page.items]
    return answer(HolderPage(items=items, held=page.held, looked_at=page.looked_at, next=page.next))


_NAMED = ((404, "limit_not_found"), (422, "invalid_limit_name"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/limits",
        scope=Scope.READ,
        does="List every limit: the declared figures, an operator's figures, and what it allows now.",
        handler=all_of,
        looks=1,
        answers={200: LimitList},
    ),
    Endpoint(
        method="GET",
        path="/v1/limits/{name}/holders",
        scope=Scope.READ,
        does="List the running jobs that hold units of a limit, or of one key of it.",
        handler=holders,
        looks=1,
        long=True,
        query=HoldersQuery,
        answers={200: HolderPage},
        problems=(*_NAMED, (422, "invalid_job_id")),
    ),
    Endpoint(
        method="PUT",
        path="/v1/limits/{name}",
        scope=Scope.OPERATE,
        does="Replace the declared figures of a limit until they are reset.",
        handler=put,
        body=LimitRequest,
        answers={200: LimitAnswer},
        problems=(*_NAMED, (422, "invalid_limit")),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/limits/{name}",
        scope=Scope.OPERATE,
        does="Return to the figures that code declares, and open the limit.",
        handler=reset,
        answers={200: LimitAnswer},
        problems=_NAMED,
    ),
)
