"""`/v1/workers`: the workers seen within the last minute."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
from starlette.responses import Response

from headrace.server import visibility
from headrace.server.api.view import text
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope


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


class Workers(msgspec.Struct):
    """Workers seen within the last minute."""

    items: list[WorkerView]
    next: None = None
    """The list is whole, so there is no next page."""


async def all_of(call: Call) -> Response:
    """GET /v1/workers"""
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
        )
        for worker in visibility.workers(call.principal, await call.service.figures.workers())
    ]
    return answer(Workers(views))


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
)
