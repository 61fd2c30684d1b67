"""`/v1/jobs`: enqueue and find jobs."""

from __future__ import annotations

from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.model.job import JobState
from headrace.model.lane import check_queue, check_task_name, check_tenant
from headrace.model.records import Filter
from headrace.operate.search import LOOK
from headrace.server import visibility
from headrace.server.admission import admit
from headrace.server.api import job_request
from headrace.server.api.job_request import JobBody, JobRequest, Time
from headrace.server.api.view import JobSummary, summary
from headrace.server.http.call import Call, answer, read_id
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem
from headrace.task.job_options import is_trace

J = TypeVar("J", bound=JobBody)

Limit = Annotated[int, Meta(ge=1, le=1000)]
Text = Annotated[str, Meta(max_length=256)]


class Created(msgspec.Struct):
    """The new job, or the existing job with the same key or lock."""

    id: UUID


async def create(call: Call) -> Response:
    """POST /v1/jobs"""
    asked: JobRequest = call.body
    if call.head.idempotency_key is not None:
        asked = with_key(asked, call.head.idempotency_key)
    if call.head.traceparent is not None:
        asked = with_trace(asked, call.head.traceparent)
    (job,) = await admit(call.service, call.principal, [job_request.make(call.service, call.principal, asked)])
    id, new = await call.service.client.place(job)
    if not new:
        await job_request.reveal(call, [id])
    return answer(Created(id), 201 if new else 200)


def read_key(header: bytes) -> str:
    """The text of an Idempotency-Key."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        raise Problem(422, "invalid_key", "the header Idempotency-Key is not UTF-8") from None


def with_key(asked: JobRequest, header: bytes) -> JobRequest:
    """The key of the header counts if the body has none."""
    key = read_key(header)
    if asked.given().get("key", key) != key:
        raise Problem(422, "invalid_key", "the header Idempotency-Key and the field key differ: give one of them")
    return msgspec.structs.replace(asked, key=key)


def with_trace(asked: J, header: bytes) -> J:
    """The trace of the header counts if the body has none.

    HTTP clients send the header without being asked, so one that cannot be read is left out, as W3C demands.
    """
    trace = header.decode("latin-1")
    if "trace" in asked.given() or not is_trace(trace):
        return asked
    return msgspec.structs.replace(asked, trace=trace)


# ── finding ──────────────────────────────────────────────────────────────────


class Where(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which jobs. All given conditions must hold."""

    state: list[JobState] = []
    queue: str | None = None
    task: str | None = None
    tenant: str | None = None
    since: Time | None = None
    """Enqueued at or after."""
    until: Time | None = None
    """Enqueued before."""
    text: Text | None = None
    """A literal text in the task's name, the arguments, the key, the note, or a failure's kind or message. Masked arguments
    never match."""

    def filter(self) -> Filter:
        """The filter for the store."""
        if self.queue is not None:
            job_request.check(check_queue, self.queue, "invalid_queue_name", "queue")
        if self.task is not None:
            job_request.check(check_task_name, self.task, "invalid_task_name", "task")
        if self.tenant is not None:
            job_request.check(check_tenant, self.tenant, "invalid_tenant", "tenant")
        return Filter(
            states=frozenset(self.state),
            queue=self.queue,
            task=self.task,
            tenant=self.tenant,
            since=self.since,
            until=self.until,
            text=self.text or None,
        )

    @property
    def narrow(self) -> bool:
        """Whether it has a condition."""
        return self.filter() != Filter()


class ListQuery(Where, forbid_unknown_fields=True, kw_only=True):
    """Which jobs, and which page of them."""

    before: str | None = None
    """The `next` of the page before."""
    limit: Limit = 50


class JobPage(msgspec.Struct):
    """Jobs, the newest first."""

    items: list[JobSummary]
    next: UUID | None
    """Give it as `before` for the next page, also if this page is short or empty. null: this was the last page."""
    looked_at: int
    """The jobs that were read for this page. With a text, one call reads about 2,000."""


async def find(call: Call) -> Response:
    """GET /v1/jobs"""
    query: ListQuery = call.query
    before = None if query.before is None else read_id(query.before)
    page = await visibility.search(call.service, call.principal).page(query.filter(), before=before, limit=query.limit)
    return answer(JobPage([summary(job, call.principal) for job in page.jobs], page.next, page.looked_at))


class CountQuery(Where, forbid_unknown_fields=True, kw_only=True):
    """Which jobs to count."""

    before: str | None = None
    """The `next` of the count before."""


class CountAnswer(msgspec.Struct, kw_only=True):
    """How many jobs match. One call reads about 5,000 jobs, or 2,000 with a text."""

    count: int
    """The jobs that were read and match, or all that match if `exact`."""
    exact: bool
    """Whether `count` is the number of all jobs that match."""
    looked_at: int
    """The jobs that were read."""
    states: dict[str, int]
    """The jobs that were read and match, by state."""
    queues: dict[str, int]
    """The same by queue: the 20 most frequent, as with tasks and tenants."""
    tasks: dict[str, int]
    tenants: dict[str, int]
    """A job without a tenant counts under an empty name."""
    next: UUID | None
    """Give it as `before` to count on. null: no job is left."""


async def count(call: Call) -> Response:
    """GET /v1/jobs/count"""
    query: CountQuery = call.query
    before = None if query.before is None else read_id(query.before)
    where = query.filter()
    search = visibility.search(call.service, call.principal)
    figures = before is None and not call.principal.bound
    number = await search.count(where, before=before, look=LOOK, figures=figures)
    return answer(CountAnswer(**msgspec.structs.asdict(number)))


PRODUCE_PROBLEMS = (
    (404, "not_found"),
    (409, "idempotency_conflict"),
    (409, "unique_conflict"),
    (422, "unknown_task"),
    (422, "bad_arguments"),
    (422, "payload_too_large"),
    (422, "unsafe_callback_url"),
    (429, "queue_full"),
    (429, "too_many_queues"),
)

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/jobs",
        scope=Scope.ENQUEUE,
        does="Enqueue a job. A repeated key is answered 200 with the same id.",
        handler=create,
        body=JobRequest,
        answers={200: Created, 201: Created},
        problems=PRODUCE_PROBLEMS,
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs",
        scope=Scope.READ,
        does="Find jobs in pages, the newest first.",
        handler=find,
        looks=1,
        long=True,
        query=ListQuery,
        answers={200: JobPage},
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/count",
        scope=Scope.READ,
        does="Count the jobs that match, by state, queue, task and tenant.",
        handler=count,
        looks=1,
        long=True,
        query=CountQuery,
        answers={200: CountAnswer},
    ),
)
