"""Jobs as HTTP answers show them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from headrace.app import Headrace
from headrace.model.gate import Needs
from headrace.model.job import Failure, Job, JobState
from headrace.operate import shown
from headrace.server.auth import Principal
from headrace.server.visibility import tenant_of


class JobSummary(msgspec.Struct, kw_only=True):
    """A job in a list."""

    id: UUID
    task: str
    queue: str
    priority: int
    tenant: str
    state: JobState
    attempt: int
    """Attempts begun so far."""
    failures: int
    crashes: int
    enqueued_at: datetime
    run_at: datetime | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    worker: UUID | None = None
    cancelling: bool = False
    note: str | None = None
    key: str | None = None
    """Its idempotency key."""
    enqueued_by: str | None = None
    """The name of the token that enqueued it, or its producer's setting. A bound token sees only its own name."""


class FailureView(msgspec.Struct, kw_only=True):
    """A failed attempt."""

    attempt: int
    kind: str
    message: str
    traceback: str
    at: datetime
    worker: str = ""


class LogView(msgspec.Struct):
    """A line that the task wrote."""

    at: datetime
    text: str


class Moment(msgspec.Struct):
    """Something that happened to a job."""

    at: datetime
    event: str
    detail: str = ""


class WaitedFor(msgspec.Struct):
    """Something that a job waits for."""

    id: UUID
    """The id of a job or of a group."""
    needs: Needs


class JobView(JobSummary, kw_only=True):
    """One job, with everything that the store has. Arguments are masked by the task's rules."""

    limits: list[str]
    arguments: dict[str, Any]
    options: dict[str, Any]
    history: list[FailureView]
    """Every failure, the oldest first."""
    progress: float | None = None
    """From 0 to 1."""
    doing: str | None = None
    log: list[LogView] = []
    timeline: list[Moment] = []
    result_expired: bool = False
    trace: str | None = None
    """The trace of its producer, as the text of a W3C traceparent."""
    trace_url: str | None = None
    """The page of that trace, by the setting `trace_url`."""
    worker_name: str | None = None
    """Host and process of the worker that runs the job, or ran it last."""
    waits: list[WaitedFor] = []
    """What the job waits for while it is blocked."""
    inputs: list[UUID] = []
    """The jobs and groups whose results are its arguments."""


def text(value: str) -> str:
    """Text that can be sent, because a store in memory may hold half a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="replace").decode()
    return value


def _common(job: Job, who: Principal) -> dict[str, Any]:
    fields = shown.plain(job) | {"tenant": tenant_of(job), "note": None if job.note is None else text(job.note)}
    if who.bound and fields["enqueued_by"] != who.name:
        fields["enqueued_by"] = None  # Tenants must not see names of tokens.
    return fields


def summary(job: Job, who: Principal) -> JobSummary:
    """A job in a list."""
    return JobSummary(**_common(job, who))


def arguments(app: Headrace, job: Job) -> dict[str, Any]:
    """Its arguments, masked."""
    return shown.arguments(app.tasks.get(job.task), job)


def whole(app: Headrace, job: Job, who: Principal) -> JobView:
    """One job, with everything that `get` returns."""
    common = _common(job, who)
    return JobView(
        **common,
        limits=list(job.limits),
        arguments=arguments(app, job),
        options=shown.options(job),
        history=[failure(entry) for entry in job.history],
        progress=job.progress,
        doing=None if job.doing is None else text(job.doing),
        log=[LogView(line.at, text(line.text)) for line in job.log],
        timeline=_timeline(job, common["enqueued_by"]),
        result_expired=job.result_expired,
        trace=shown.trace(job),
        trace_url=shown.trace_url(job, app.settings.trace_url),
        worker_name=None if job.worker_name is None else text(job.worker_name),
        waits=[WaitedFor(wait.gate, wait.needs) for wait in job.waits],
        inputs=list(shown.inputs(job)),
    )


def failure(entry: Failure) -> FailureView:
    """One failure."""
    return FailureView(
        attempt=entry.attempt,
        kind=text(entry.kind),
        message=text(entry.message),
        traceback=text(entry.traceback),
        at=entry.at,
        worker=text(entry.worker),
    )


def _timeline(job: Job, by: str | None) -> list[Moment]:
    """The stored events of a job, in their order."""
    moments = [Moment(job.enqueued_at, "enqueued", f"by {by}" if by else "")]
    moments += [Moment(entry.at, "failed", f"attempt {entry.attempt}: {text(entry.kind)}") for entry in job.history]
    if job.claimed_at is not None:
        by_worker = f" by {text(job.worker_name)}" if job.worker_name else ""
        moments.append(Moment(job.claimed_at, "claimed", f"attempt {job.attempt}{by_worker}"))
    if job.finished_at is not None:
        moments.append(Moment(job.finished_at, job.state.value, text(job.note or "")))
    moments.sort(key=lambda moment: moment.at)
    if job.run_at is not None:
        moments.append(Moment(job.run_at, "due"))
    return moments
