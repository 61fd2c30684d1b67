"""`/enqueue`: the short form."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace
from starlette.responses import Response

from headrace.server.admission import admit
from headrace.server.api import job_request, jobs
from headrace.server.api.job_request import NO_KWARGS, JobRequest, When
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem

Payload = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "array"]})]


class ShortRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A job in short."""

    type: str
    """The task's name."""
    payload: Payload = msgspec.field(default_factory=lambda: NO_KWARGS)
    """Its arguments: an object by name, an array by place."""
    run_at: When | None = None
    """Not before this time. `now` is the default."""


class Made(msgspec.Struct):
    """The job that was made."""

    id: UUID
    task_id: UUID
    """The same id under the name that other queues use."""


async def create(call: Call) -> Response:
    """POST /enqueue"""
    short: ShortRequest = call.body
    sign = bytes(short.payload)[:1]
    if sign not in {b"{", b"["}:
        raise Problem(422, "bad_arguments", "payload is an object or an array", path="payload")
    by_name = sign == b"{"
    asked = JobRequest(
        task=short.type,
        args=Raw(b"[]") if by_name else short.payload,
        kwargs=short.payload if by_name else NO_KWARGS,
    )
    if short.run_at is not None:
        asked = replace(asked, run_at=short.run_at)
    if call.head.idempotency_key is not None:
        asked = jobs.with_key(asked, call.head.idempotency_key)
    if call.head.traceparent is not None:
        asked = jobs.with_trace(asked, call.head.traceparent)
    (job,) = await admit(call.service, call.principal, [job_request.make(call.service, call.principal, asked)])
    id, new = await call.service.client.place(job)
    if not new:
        await job_request.reveal(call, [id])
    return answer(Made(id, id), 201 if new else 200)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/enqueue",
        scope=Scope.ENQUEUE,
        does="Enqueue a job in the short form.",
        handler=create,
        body=ShortRequest,
        answers={200: Made, 201: Made},
        problems=jobs.PRODUCE_PROBLEMS,
    ),
)
