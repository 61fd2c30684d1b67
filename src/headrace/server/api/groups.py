"""`/v1/groups` and `/v1/jobs/{id}/workflow`: groups of jobs, and what hangs together with a job."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model.gate import Gate, GateId
from headrace.model.job import JobState, parse_id
from headrace.operate.groups import WorkflowGraph, group_page, group_view, parse_group, workflow
from headrace.server import link_visibility, visibility
from headrace.server.api.job import CancelRequest
from headrace.server.api.view import JobSummary, summary
from headrace.server.explain_visibility import NarrowedLinks
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem


class JobGroupView(msgspec.Struct, kw_only=True):
    """A group, and how its jobs ended."""

    id: UUID
    label: str
    tenant: str
    queue: str
    sealed: bool
    """True: no call adds further jobs from outside."""
    size: int
    done: int
    dead: int
    cancelled: int
    left: int
    """Jobs that have not ended."""
    made_at: datetime
    changed_at: datetime


class GroupQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which groups."""

    tenant: Annotated[str, Meta(max_length=200)] | None = None
    before: Annotated[str, Meta(max_length=36)] = ""
    """The `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50


class JobGroups(msgspec.Struct, kw_only=True):
    """JobGroups, the newest first."""

    items: list[JobGroupView]
    next: UUID | None
    """The `before` of the next page. null: there is none."""


async def all_of(call: Call) -> Response:
    """GET /v1/groups"""
    query: GroupQuery = call.query
    who, tenant = call.principal, query.tenant
    before = _read(query.before, "before") if query.before else None
    if who.tenant is not None:
        if tenant not in {None, who.tenant}:
            return answer(JobGroups(items=[], next=None))
        tenant = who.tenant
    gates = await call.service.store.groups(tenant=tenant, before=before, limit=query.limit)
    items = [JobGroupView(**group_view(gate)) for gate in gates if who.sees(gate.queue, gate.tenant)]
    return answer(JobGroups(items=items, next=gates[-1].id if len(gates) == query.limit else None))


async def show(call: Call) -> Response:
    """GET /v1/groups/{id}"""
    return answer(JobGroupView(**group_view(await _visible(call))))


class GroupJobsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which jobs of a group."""

    state: list[JobState] = []
    offset: Annotated[int, Meta(ge=0)] = 0
    """The `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class GroupJobs(msgspec.Struct, kw_only=True):
    """Jobs of a group, in the order in which they were enqueued."""

    items: list[JobSummary]
    next: int | None
    """Give it as `offset` for the next page, also if this page is short or empty. null: this was the last page."""


async def jobs(call: Call) -> Response:
    """GET /v1/groups/{id}/jobs"""
    query: GroupJobsQuery = call.query
    gate = await _visible(call)
    store, who = call.service.store, call.principal
    page = await group_page(store, gate.id, query.state, offset=query.offset, limit=query.limit)
    seen = [summary(job, who) for job in page.jobs if visibility.sees(who, job)]
    return answer(GroupJobs(items=seen, next=page.next))


class GroupCancelled(msgspec.Struct):
    """The outcome of the call."""

    id: UUID
    cancelled: int
    """Jobs that will never run, or that were asked to stop."""


async def cancel(call: Call) -> Response:
    """POST /v1/groups/{id}/cancel"""
    asked: CancelRequest = call.body
    gate = await _visible(call)
    if call.principal.bound and not call.principal.sees(None, gate.tenant):
        # A token for some queues only: the members of a group may be in others.
        raise _no_group()
    return answer(GroupCancelled(gate.id, await call.operations.groups.cancel(gate.id, asked.reason)))


class WorkflowQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far to walk."""

    depth: Annotated[int, Meta(ge=1, le=100)] = 20
    """Steps from the job, in both directions."""


async def graph(call: Call) -> Response:
    """GET /v1/jobs/{id}/workflow"""
    query: WorkflowQuery = call.query
    job = await visibility.job(call, call.job_id)
    store = call.service.store
    seen = NarrowedLinks(store, call.principal) if call.principal.bound else store
    return answer(await workflow(seen, job.id, query.depth))


async def group_graph(call: Call) -> Response:
    """GET /v1/groups/{id}/workflow"""
    query: WorkflowQuery = call.query
    gate = await _visible(call)
    store = call.service.store
    seen = NarrowedLinks(store, call.principal) if call.principal.bound else store
    return answer(await workflow(seen, gate.id, query.depth))


async def _visible(call: Call) -> Gate:
    [gate] = await link_visibility.gates(call.service.store, call.principal, [_read(call.path["id"])])
    if gate is None:
        raise _no_group()
    return gate


def _read(text: str, path: str = "id") -> GateId:
    try:
        return parse_group(text)
    except ConfigError:
        with suppress(ConfigError):
            parse_id(text)
            raise _no_group() from None  # The id of something else.
        raise Problem(422, "invalid_value", "that is not the id of a group: see GET /v1/groups", path=path) from None


def _no_group() -> Problem:
    return Problem(404, "not_found", "there is no such group: it was pruned, or its id is mistyped")


_UNKNOWN = ((404, "not_found"), (422, "invalid_value"))
ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/groups",
        scope=Scope.READ,
        does="List groups of jobs in pages, the newest first, with how their jobs ended.",
        handler=all_of,
        query=GroupQuery,
        answers={200: JobGroups},
        problems=((422, "invalid_value"),),
        looks=1,
    ),
    Endpoint(
        method="GET",
        path="/v1/groups/{id}",
        scope=Scope.READ,
        does="Show one group: how many of its jobs have ended, and how.",
        handler=show,
        answers={200: JobGroupView},
        problems=_UNKNOWN,
    ),
    Endpoint(
        method="GET",
        path="/v1/groups/{id}/jobs",
        scope=Scope.READ,
        does="List the jobs of a group in pages, in the order in which they were enqueued.",
        handler=jobs,
        query=GroupJobsQuery,
        answers={200: GroupJobs},
        problems=_UNKNOWN,
        looks=1,
        long=True,
    ),
    Endpoint(
        method="GET",
        path="/v1/groups/{id}/workflow",
        scope=Scope.READ,
        does="Show the jobs and groups that hang together with a group, at most 500.",
        handler=group_graph,
        query=WorkflowQuery,
        answers={200: WorkflowGraph},
        problems=_UNKNOWN,
        long=True,
    ),
    Endpoint(
        method="POST",
        path="/v1/groups/{id}/cancel",
        scope=Scope.OPERATE,
        does="Cancel the jobs of a group that have not ended.",
        handler=cancel,
        body=CancelRequest,
        answers={200: GroupCancelled},
        problems=_UNKNOWN,
        long=True,
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}/workflow",
        scope=Scope.READ,
        does="Show the jobs and groups that hang together with a job, at most 500.",
        handler=graph,
        query=WorkflowQuery,
        answers={200: WorkflowGraph},
        problems=((404, "job_not_found"), (422, "invalid_job_id")),
        long=True,
    ),
)
