"""`/v1/jobs/bulk`: cancel, retry or delete many jobs, by id or by filter, a bounded number per call."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.model.job import Job, JobId
from headrace.model.records import CancelAnswer
from headrace.operate.audit import chosen
from headrace.operate.jobs import JobOperations
from headrace.server import visibility
from headrace.server.api.jobs import Limit, Where
from headrace.server.http.call import Call, answer, read_id
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem

Action = Literal["cancel", "retry", "delete"]


class BulkRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The action, and the jobs it applies to."""

    action: Action
    ids: Annotated[list[str], Meta(max_length=1000)] = []
    """These, or:"""
    filter: Where | None = None
    """All jobs that match the filter."""
    everything: bool = False
    """Required for a filter that matches all jobs."""
    before: str | None = None
    """The `next` of the call before."""
    limit: Limit = 1000
    """Jobs looked at in this call."""
    reason: Annotated[str, Meta(max_length=500)] | None = None
    """For cancel."""


class BulkAnswer(msgspec.Struct):
    """How many jobs were changed, and whether there are more."""

    found: int
    changed: int
    more: bool
    next: UUID | None
    """Give it as `before` to go on."""


async def run(call: Call) -> Response:
    """POST /v1/jobs/bulk"""
    asked: BulkRequest = call.body
    selection, next_ = await _chosen(call, asked)
    what = chosen([job.id for job in selection] if asked.ids else (), (asked.filter or Where()).filter())
    async with call.operations.jobs.many(what) as jobs:
        changed = await _act(jobs, asked, [job.id for job in selection]) if selection else 0
    return answer(BulkAnswer(len(selection), changed, next_ is not None, next_))


async def _chosen(call: Call, asked: BulkRequest) -> tuple[list[Job], JobId | None]:
    if asked.ids:
        if asked.filter is not None or asked.everything:
            raise Problem(422, "invalid_choice", "give ids, or a filter, not both")
        return await visibility.jobs(call, [read_id(id) for id in dict.fromkeys(asked.ids)]), None
    where = asked.filter or Where()
    if not where.narrow and not asked.everything:
        raise Problem(422, "invalid_choice", 'no jobs are selected: give ids, a filter, or "everything": true')
    before = None if asked.before is None else read_id(asked.before)
    search = visibility.search(call.service, call.principal)
    page = await search.page(where.filter(), before=before, limit=asked.limit)
    return page.jobs, page.next


async def _act(jobs: JobOperations, asked: BulkRequest, ids: list[JobId]) -> int:
    match asked.action:
        case "cancel":
            answers = await jobs.cancel(ids, asked.reason)
            return sum(reply in {CancelAnswer.CANCELLED, CancelAnswer.ASKED} for reply in answers.values())
        case "retry":
            return len(await jobs.retry(ids))
        case "delete":
            return len(await jobs.delete(ids))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/jobs/bulk",
        scope=Scope.OPERATE,
        does="Cancel, retry or delete many jobs. The answer says how many, and whether there are more.",
        handler=run,
        body=BulkRequest,
        answers={200: BulkAnswer},
        problems=((422, "invalid_choice"), (422, "invalid_job_id")),
    ),
)
