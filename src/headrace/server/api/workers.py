"""`/v1/workers`: the workers seen within the last minute, and orders to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from headrace.model.lease import WorkerId, WorkerOrder
from headrace.operate.workers import OrderVerb
from headrace.server import visibility
from headrace.server.api.view import text
from headrace.server.auth import Principal
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found


class WorkerView(msgspec.Struct, kw_only=True):
    """A worker process."""

    id: UUID
    name: str
    queues: list[str]
    slots: int
    running: int
    version: str
    started_at: datetime
    seen_at: datetime | None
    tasks: list[str]
    hindered: list[str]
    """Why it starts no other job now, or fewer: quiet, settling, quarantine, reserved, stuck."""
    memory: int | None = None
    """The bytes of memory that it and its child processes occupy; null: not known."""
    order: str | None = None
    """What an operator has ordered: quiet or drain."""
    ordered_by: str | None = None
    """The author of the order. A bound token does not see it."""
    ordered_at: datetime | None = None


class Workers(msgspec.Struct):
    """Workers seen within the last minute."""

    items: list[WorkerView]
    next: None = None
    """The list is whole, so there is no next page."""


async def all_of(call: Call) -> Response:
    """GET /v1/workers"""
    orders = await call.service.figures.orders()
    views = [
        WorkerView(
            id=worker.id,
            name=text(worker.name),
            queues=list(worker.queues),
            slots=worker.slots,
            running=worker.running,
            version=text(worker.version),
            started_at=worker.started_at,
            seen_at=worker.seen_at,
            tasks=[text(name) for name in worker.tasks],
            hindered=[text(why) for why in worker.hindered],
            memory=worker.memory,
            **_order(orders.get(str(worker.id)), call.principal),
        )
        for worker in visibility.workers(call.principal, await call.service.figures.workers())
    ]
    return answer(Workers(views))


def _order(order: WorkerOrder | None, principal: Principal) -> dict[str, Any]:
    if order is None:
        return {}
    return {
        "order": order.kind,
        "ordered_by": None if principal.bound else order.by,
        "ordered_at": order.at,
    }


class Ordered(msgspec.Struct, kw_only=True):
    """The worker, and the order that stands."""

    id: UUID
    name: str
    order: str | None
    """quiet or drain; null: the worker was resumed."""


async def quiet(call: Call) -> Response:
    """POST /v1/workers/{id}/quiet"""
    return await _give(call, "quiet")


async def resume(call: Call) -> Response:
    """POST /v1/workers/{id}/resume"""
    return await _give(call, "resume")


async def drain(call: Call) -> Response:
    """POST /v1/workers/{id}/drain"""
    return await _give(call, "drain")


async def _give(call: Call, verb: OrderVerb) -> Response:
    try:
        id = WorkerId(UUID(call.path["id"]))
    except ValueError:
        raise Problem(422, "invalid_worker_id", "that is not a worker's id: `GET /v1/workers` lists them") from None
    # An order concerns all queues of a worker, so the caller has to see all of them.
    known = {worker.id: worker for worker in await call.service.store.workers()}
    if id not in known or not visibility.owns_worker(call.principal, known[id]):
        raise not_found("there is no such worker: it has ended, or was not seen within the last minute")
    worker = await call.operations.workers.order(id, verb)
    call.service.figures.forget_orders()
    if worker is None:
        raise not_found("there is no such worker: it has ended, or was not seen within the last minute")
    order = (await call.service.figures.orders()).get(str(id))
    return answer(Ordered(id=id, name=text(worker.name), order=None if order is None else order.kind))


_NAMED = ((404, "not_found"), (422, "invalid_worker_id"))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/workers",
        scope=Scope.READ,
        does="List the workers seen within the last minute. The answer may be a second old.",
        handler=all_of,
        looks=1,
        answers={200: Workers},
    ),
    Endpoint(
        method="POST",
        path="/v1/workers/{id}/quiet",
        scope=Scope.OPERATE,
        does="Let a worker claim nothing more until it is resumed. Running jobs continue.",
        handler=quiet,
        answers={200: Ordered},
        problems=_NAMED,
    ),
    Endpoint(
        method="POST",
        path="/v1/workers/{id}/resume",
        scope=Scope.OPERATE,
        does="Let a quiet worker claim jobs again.",
        handler=resume,
        answers={200: Ordered},
        problems=_NAMED,
    ),
    Endpoint(
        method="POST",
        path="/v1/workers/{id}/drain",
        scope=Scope.OPERATE,
        does="Let a worker finish its running jobs and end. This cannot be taken back.",
        handler=drain,
        answers={200: Ordered},
        problems=_NAMED,
    ),
)
