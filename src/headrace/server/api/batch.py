"""`/v1/jobs/batch`: up to 1,000 jobs in one call, all or nothing."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response

from headrace.model.lane import check_key
from headrace.server.admission import admit
from headrace.server.api import job_request
from headrace.server.api.job_request import JobRequest
from headrace.server.api.jobs import PRODUCE_PROBLEMS, read_key, with_trace
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem

MOST = 1000


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs to be made, all or none of them."""

    jobs: Annotated[list[JobRequest], Meta(extra_json_schema={"minItems": 1, "maxItems": MOST})]


class BatchPlaced(msgspec.Struct):
    """The jobs' ids, in the order asked."""

    ids: list[UUID]
    existing: list[int]
    """The places of jobs that existed before, by their key or lock."""


async def create(call: Call) -> Response:
    """POST /v1/jobs/batch"""
    asked: BatchRequest = call.body
    if not 1 <= len(asked.jobs) <= MOST:
        raise Problem(422, "batch_too_large" if asked.jobs else "batch_empty", f"a batch has 1 to {MOST:,} jobs")
    service, principal = call.service, call.principal
    wanted = asked.jobs if call.head.idempotency_key is None else _keyed(asked.jobs, call.head.idempotency_key)
    if call.head.traceparent is not None:
        wanted = [with_trace(request, call.head.traceparent) for request in wanted]
    jobs = [job_request.make(service, principal, request, f"jobs[{place}].") for place, request in enumerate(wanted)]
    placed = await service.client.enqueue(await admit(service, principal, jobs))
    if placed.existing:
        await job_request.reveal(call, placed.existing.values())
    ids: list[UUID] = [placed.id(place) for place in range(len(jobs))]
    return answer(BatchPlaced(ids, sorted(placed.existing)), 201)


def _keyed(jobs: list[JobRequest], header: bytes) -> list[JobRequest]:
    """The header's key counts for the batch. Each job gets it with its place, unless it has a key of its own."""
    key = job_request.check(check_key, read_key(header), "invalid_key", "jobs")
    return [
        request if "key" in request.given() else replace(request, key=f"{key}#{place}")
        for place, request in enumerate(jobs)
    ]


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/jobs/batch",
        scope=Scope.ENQUEUE,
        does="Enqueue up to 1,000 jobs: all or none. A repeated Idempotency-Key returns the same ids.",
        handler=create,
        body=BatchRequest,
        answers={201: BatchPlaced},
        problems=(*PRODUCE_PROBLEMS, (422, "batch_too_large"), (422, "batch_empty")),
    ),
)
