"""`/v1/claim`, `/v1/heartbeat`, `/v1/progress`, `/v1/log`: workers in any language. See also `settle.py`, `work_steps.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.errors import ConfigError, LeaseLost, StoreError
from headrace.model.job import Claimed, LogLine
from headrace.model.lane import check_queue, check_task_name
from headrace.model.lease import MAX_LEASE, MAX_LOG, Ask, Lease, Report, new_token
from headrace.model.outcome import Released
from headrace.model.step import Step
from headrace.operate.shown import value_of
from headrace.server.api import settle as settle_api
from headrace.server.api import work_steps
from headrace.server.api.settle import LOST, LeaseText, Position, Seconds, address, delay, write
from headrace.server.api.view import text
from headrace.server.auth import Principal
from headrace.server.http.boundary import Gone
from headrace.server.http.call import Call, answer, nothing
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found
from headrace.task import codec

LONGEST_WAIT = 30.0
LONGEST_LEASE = 3600.0

Name = Annotated[str, Meta(max_length=128)]


# ── claim ────────────────────────────────────────────────────────────────────


class ClaimRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Jobs wanted."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=100)]
    limit: Annotated[int, Meta(ge=1, le=MAX_LEASE)] = 1
    """At most so many jobs, all under one lease."""
    wait: Seconds = 0
    """How long the call may wait for the first job, up to 30 s."""
    lease: Seconds = 60
    """How long the worker holds the jobs without a heartbeat, from 1 s to 1 h."""
    worker: Name | None = None
    """The worker's name, e.g. host:pid. The default is its address."""
    tasks: Annotated[list[str], Meta(max_length=1000)] = []
    """The tasks that the worker knows, for explanations why a job waits."""
    steps: bool = False
    """Answer the finished steps of jobs that ran before."""


class FinishedStep(msgspec.Struct, kw_only=True):
    """A step that an earlier attempt has finished."""

    name: str
    number: int
    value: Any


class ClaimedJob(msgspec.Struct, kw_only=True):
    """A job that the worker holds while the lease is valid."""

    position: int
    """Its place in the lease, which names it in settlements, progress and log."""
    id: UUID
    task: str
    queue: str
    priority: int
    tenant: str
    attempt: int
    """Which attempt this is, from 1."""
    failures: int
    """Earlier attempts that failed."""
    enqueued_at: datetime
    timeout: float | None
    """Seconds that the attempt may take. None: no limit. The worker must keep to it."""
    trace: str | None
    """The trace of the producer, as the text of a W3C traceparent, for the worker's spans."""
    args: list[Any]
    """The server puts results of other jobs in the place of references."""
    kwargs: dict[str, Any]
    problem: str | None = None
    """The arguments cannot be shown as JSON, and why."""
    steps: list[FinishedStep] = []
    """What earlier attempts have finished, in that order, if the claim asks for `steps`."""


class ClaimAnswer(msgspec.Struct, kw_only=True):
    """A lease and its jobs."""

    lease: str
    """The token of the lease. Send it with every call about these jobs, and keep it secret."""
    expires_in: float
    """Seconds until another worker may get the jobs, unless you send a heartbeat before."""
    suspect: bool
    """A worker died while it ran this job: run it beside as few other jobs as possible."""
    jobs: list[ClaimedJob]


async def claim(call: Call) -> Response:
    """POST /v1/claim"""
    asked: ClaimRequest = call.body
    service, principal = call.service, call.principal
    leases = service.leases
    queues = tuple(dict.fromkeys(_queue(name, principal) for name in asked.queues))
    wait = _seconds(asked.wait, "wait", 0.0, LONGEST_WAIT)
    ttl = _seconds(asked.lease, "lease", 1.0, LONGEST_LEASE)
    tasks = [_checked(check_task_name, name, "tasks") for name in asked.tasks]
    name = asked.worker or address(call)
    worker = leases.worker_id(principal, name)
    await leases.seen(leases.presence(principal, name, queues, tasks, asked.limit))

    async def look() -> tuple[Lease, list[ClaimedJob]] | None:
        handout = None
        while handout is None:
            if await call.request.is_disconnected():
                raise Gone  # After None, no other waiting claim would look.
            ask = Ask(worker, queues, asked.limit, timedelta(seconds=ttl), new_token(), tenant=principal.tenant)
            lease = await leases.claims.claim(ask)
            if lease is None:
                return None
            leases.remember(lease, name)
            if await call.request.is_disconnected():
                await write(call, lease.token, [(at, job, Released()) for at, job in enumerate(lease.jobs)])
                raise Gone
            handout = await _hand_out(call, lease)  # None: all of them came too late, and there may be more.
        return handout

    async def woken() -> tuple[Lease, list[ClaimedJob]] | None:
        await call.still_welcome()
        return await look()

    try:
        handout = await leases.room.until_found(queues, principal.tenant, wait, look, woken)
    except Gone:
        handout = None  # The client has gone.
    if handout is None:
        return nothing()
    lease, jobs = handout
    return answer(
        ClaimAnswer(lease=leases.signer.seal(lease.token, principal), expires_in=ttl, suspect=lease.suspect, jobs=jobs)
    )


async def _hand_out(call: Call, lease: Lease) -> tuple[Lease, list[ClaimedJob]] | None:
    """The jobs that may start. Jobs that came too late are ended here, and paused ones are put off."""
    asked: ClaimRequest = call.body
    leases = call.service.leases
    unfit = await leases.unfit(lease)
    fit = [(position, job) for position, job in enumerate(lease.jobs) if position not in unfit]
    try:
        complete = await leases.handout.complete([job for _, job in fit], steps=asked.steps)
    except StoreError:
        await write(call, lease.token, [(position, job, Released()) for position, job in enumerate(lease.jobs)])
        raise
    jobs: list[ClaimedJob] = []
    for (position, _), whole in zip(fit, complete, strict=True):
        if isinstance(whole, tuple):
            jobs.append(_show(*whole, position, leases.timeout(whole[0])))
        else:
            unfit[position] = whole
    if unfit:
        ended = [(position, lease.jobs[position], outcome) for position, outcome in unfit.items()]
        await write(call, lease.token, ended)
    return (lease, jobs) if jobs else None


def _show(job: Claimed, steps: Sequence[Step], position: int, timeout: float | None) -> ClaimedJob:
    shown = codec.show(job.payload)
    return ClaimedJob(
        position=position,
        id=job.id,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        tenant=job.tenant,
        attempt=job.attempt,
        failures=job.failures,
        enqueued_at=job.enqueued_at,
        timeout=timeout,
        trace=None if job.options is None else codec.readable_options(job.options).trace,
        args=shown["args"],
        kwargs=shown["kwargs"],
        problem=shown.get("problem"),
        steps=[FinishedStep(name=text(step.name), number=step.number, value=value_of(step.value)) for step in steps],
    )


# ── heartbeat ────────────────────────────────────────────────────────────────


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Leases to renew."""

    leases: Annotated[list[LeaseText], Meta(max_length=1000)]
    lease: Seconds = 60
    """For how long from now, from 1 s to 1 h."""


class StopAnswer(msgspec.Struct):
    """This job was cancelled: stop it, and settle it as cancelled."""

    lease: str
    position: int


class HeartbeatAnswer(msgspec.Struct):
    lost: list[str]
    """Leases that another worker holds now: drop their jobs."""
    stops: list[StopAnswer]


async def heartbeat(call: Call) -> Response:
    """POST /v1/heartbeat"""
    asked: HeartbeatRequest = call.body
    ttl = _seconds(asked.lease, "lease", 1.0, LONGEST_LEASE)
    signer = call.service.leases.signer
    tokens = {signer.read(text, call.principal): text for text in asked.leases}
    pulse = await call.service.store.heartbeat(list(tokens), timedelta(seconds=ttl))
    for token in pulse.lost:
        call.service.leases.forget(token)
    return answer(
        HeartbeatAnswer(
            lost=[text for token, text in tokens.items() if token in pulse.lost],
            stops=[StopAnswer(tokens[stop.token], stop.position) for stop in pulse.stops],
        )
    )


# ── progress and log ─────────────────────────────────────────────────────────


class ProgressRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far a job is."""

    lease: LeaseText
    position: Position
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    note: Annotated[str, Meta(max_length=512)] | None = None
    """What it is doing."""


class LogRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Lines for a job's log."""

    lease: LeaseText
    position: Position
    lines: Annotated[list[Annotated[str, Meta(max_length=2048)]], Meta(min_length=1, max_length=MAX_LOG)]


async def progress(call: Call) -> Response:
    """POST /v1/progress"""
    asked: ProgressRequest = call.body
    return await _report(call, asked.lease, asked.position, Report(progress=asked.progress, note=asked.note))


async def log(call: Call) -> Response:
    """POST /v1/log"""
    asked: LogRequest = call.body
    now = await call.service.store.now()
    return await _report(call, asked.lease, asked.position, Report(lines=tuple(LogLine(now, x) for x in asked.lines)))


async def _report(call: Call, lease: str, position: int, report: Report) -> Response:
    token = call.service.leases.signer.read(lease, call.principal)
    if await call.service.store.report(token, [(position, report)]):
        raise LeaseLost("another worker holds this job now, or it was settled before: nothing was written")
    return nothing()


# ── checks ───────────────────────────────────────────────────────────────────


def _queue(name: str, principal: Principal) -> str:
    _checked(check_queue, name, "queues")
    if principal.queues is not None and name not in principal.queues:
        raise not_found(f"there is no queue {name}")
    return name


def _checked(check: Any, value: str, path: str) -> str:
    try:
        return str(check(value))
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path=path) from None


def _seconds(value: float | str, path: str, least: float, most: float) -> float:
    seconds = delay(value, path).total_seconds()
    if not least <= seconds <= most:
        raise Problem(422, "invalid_value", f"{path}: from {least:g} s to {most:g} s", path=path)
    return seconds


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/claim",
        scope=Scope.WORK,
        does="Claim jobs under a lease. With `wait`, wait for the first job; 204 means that there was none.",
        handler=claim,
        body=ClaimRequest,
        answers={200: ClaimAnswer, 204: None},
        problems=((404, "not_found"), (422, "invalid_value")),
    ),
    Endpoint(
        method="POST",
        path="/v1/heartbeat",
        scope=Scope.WORK,
        does="Renew leases. The answer names the lost leases and the jobs to stop.",
        handler=heartbeat,
        body=HeartbeatRequest,
        answers={200: HeartbeatAnswer},
        problems=((404, "not_found"), (422, "invalid_value")),
    ),
    *settle_api.ENDPOINTS,
    *work_steps.ENDPOINTS,
    Endpoint(
        method="POST",
        path="/v1/progress",
        scope=Scope.WORK,
        does="Report the progress of a job and a message.",
        handler=progress,
        body=ProgressRequest,
        answers={204: None},
        problems=LOST,
    ),
    Endpoint(
        method="POST",
        path="/v1/log",
        scope=Scope.WORK,
        does="Add lines to a job's log.",
        handler=log,
        body=LogRequest,
        answers={204: None},
        problems=LOST,
    ),
)
