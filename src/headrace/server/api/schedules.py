"""`/v1/schedules`: show and change cron and interval rules at run time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError, ScheduleNotFound
from headrace.model import duration
from headrace.operate.schedules import Schedules
from headrace.policy import schedule
from headrace.policy.schedule_entry import ScheduleEntry
from headrace.policy.schedule_options import OPTIONS
from headrace.server.admission import admit_schedule
from headrace.server.api import job_request
from headrace.server.api.job_request import JobRequest, check, read_options
from headrace.server.http.call import Call, answer, nothing
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem
from headrace.task.job_checks import tenant_of
from headrace.task.option import OptionBody, body


class DecisionView(msgspec.Struct, kw_only=True):
    """The outcome of a slot, or of several in a row."""

    answer: str
    slot: datetime
    reason: str
    count: int
    job: UUID | None


class ScheduleView(msgspec.Struct, kw_only=True):
    """A schedule."""

    name: str
    cron: str | None
    every: str | None
    tz: str
    overlap: str
    catch_up: str
    jitter: str
    task: str
    queue: str
    priority: int
    tenant: str
    declared: bool
    """Declared by code: it comes back with the next worker."""
    paused: bool
    paused_by: str
    next: datetime | None
    fired: int
    skipped: int
    last_job: UUID | None
    recent: list[DecisionView]


class ScheduleList(msgspec.Struct):
    """Every schedule, by name."""

    items: list[ScheduleView]
    next: None = None
    """The list is whole, so there is no next page."""


def _view(call: Call, entry: ScheduleEntry, now: datetime) -> ScheduleView:
    declared, job = entry.schedule, schedule.job_now(entry.schedule)
    return ScheduleView(
        name=declared.name.removeprefix(_own(call, "")),
        cron=declared.cron,
        every=None if declared.every is None else duration.show(declared.every),
        tz=declared.tz,
        overlap=declared.overlap,
        catch_up=declared.catch_up,
        jitter=duration.show(declared.jitter),
        task=declared.job.task,
        queue=declared.job.lane.queue,
        priority=declared.job.lane.priority,
        tenant=tenant_of(job),
        declared=entry.declared,
        paused=entry.paused,
        paused_by=entry.paused_by,
        next=_next(entry, now),
        fired=entry.fired,
        skipped=entry.skipped,
        last_job=entry.last,
        recent=[
            DecisionView(
                answer=decision.answer,
                slot=decision.slot,
                reason=decision.reason,
                count=decision.count,
                job=decision.job,
            )
            for decision in entry.recent
        ],
    )


def _next(entry: ScheduleEntry, now: datetime) -> datetime | None:
    try:
        return entry.next_slot(now)
    except ConfigError:
        return None  # This machine does not know the time zone.


def _sees(call: Call, entry: ScheduleEntry) -> bool:
    job = schedule.job_now(entry.schedule)
    return call.principal.sees(job.lane.queue, tenant_of(job))


def _own(call: Call, name: str) -> str:
    """The stored form of a schedule's name. It contains the tenant, so that tenants cannot see each other's names."""
    tenant = call.principal.tenant
    return name if tenant is None else f"{tenant}:{name}"


async def all_of(call: Call) -> Response:
    """GET /v1/schedules"""
    store = call.service.store
    now = await store.now()
    entries = await Schedules(store).all()
    return answer(ScheduleList([_view(call, entry, now) for _, entry in sorted(entries.items()) if _sees(call, entry)]))


# ── changing ─────────────────────────────────────────────────────────────────


class ScheduleBody(OptionBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A schedule to be added: a rule, and the job it makes."""

    name: str
    job: JobRequest
    replace: bool = False
    """Replace a schedule of that name."""


if TYPE_CHECKING:
    ScheduleRequest: TypeAlias = ScheduleBody
else:
    ScheduleRequest = body(ScheduleBody, OPTIONS, "ScheduleRequest")


async def add(call: Call) -> Response:
    """POST /v1/schedules"""
    asked: ScheduleRequest = call.body
    check(schedule.check_name, asked.name, "invalid_schedule_name", "name")
    job = job_request.make(call.service, call.principal, asked.job, "job.")
    options = read_options(OPTIONS, asked.given())
    try:
        declared = schedule.declare(asked.name, job=job, **options)
    except ConfigError as error:
        raise Problem(422, "invalid_schedule", str(error)) from None
    declared = msgspec.structs.replace(declared, name=_own(call, asked.name))
    declared = await admit_schedule(call.service, call.principal, declared)
    there = (await Schedules(call.service.store).all()).get(declared.name)
    if there is not None and (not asked.replace or not _sees(call, there)):
        raise Problem(409, "schedule_exists", f"a schedule {asked.name} exists already: remove it first, or replace it")
    entry = await call.operations.schedules.add(declared, replace=asked.replace)
    return answer(_view(call, entry, await call.service.store.now()), 201)


async def _known(call: Call) -> str:
    known = schedule.check_stored_name if call.principal.tenant is None else schedule.check_name
    name = _own(call, check(known, call.path["name"], "invalid_schedule_name", "name"))
    entry = (await Schedules(call.service.store).all()).get(name)
    if entry is None or not _sees(call, entry):
        raise ScheduleNotFound("there is no such schedule")
    return name


async def pause(call: Call) -> Response:
    """POST /v1/schedules/{name}/pause"""
    entry = await call.operations.schedules.pause(await _known(call))
    return answer(_view(call, entry, await call.service.store.now()))


async def resume(call: Call) -> Response:
    """POST /v1/schedules/{name}/resume"""
    entry = await call.operations.schedules.resume(await _known(call))
    return answer(_view(call, entry, await call.service.store.now()))


class RunNow(msgspec.Struct):
    """The job that was made."""

    id: UUID


async def run_now(call: Call) -> Response:
    """POST /v1/schedules/{name}/run-now"""
    return answer(RunNow(await call.operations.schedules.run_now(await _known(call))), 201)


async def remove(call: Call) -> Response:
    """DELETE /v1/schedules/{name}"""
    await call.operations.schedules.remove(await _known(call))
    return nothing()


_NAMED = ((404, "schedule_not_found"), (422, "invalid_schedule_name"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/schedules",
        scope=Scope.READ,
        does="List every schedule: its rule, its next slot and the outcome of the last slots.",
        handler=all_of,
        looks=1,
        answers={200: ScheduleList},
    ),
    Endpoint(
        method="POST",
        path="/v1/schedules",
        scope=Scope.OPERATE,
        does="Add a schedule, or replace one.",
        handler=add,
        body=ScheduleRequest,
        answers={201: ScheduleView},
        problems=(
            (404, "not_found"),
            (409, "schedule_exists"),
            (422, "invalid_cron"),
            (422, "never_fires"),
            (422, "invalid_timezone"),
            (422, "invalid_schedule"),
        ),
    ),
    Endpoint(
        method="POST",
        path="/v1/schedules/{name}/pause",
        scope=Scope.OPERATE,
        does="Pause a schedule: no slot fires until it is resumed.",
        handler=pause,
        answers={200: ScheduleView},
        problems=_NAMED,
    ),
    Endpoint(
        method="POST",
        path="/v1/schedules/{name}/resume",
        scope=Scope.OPERATE,
        does="Let a schedule fire again, from the next slot.",
        handler=resume,
        answers={200: ScheduleView},
        problems=_NAMED,
    ),
    Endpoint(
        method="POST",
        path="/v1/schedules/{name}/run-now",
        scope=Scope.OPERATE,
        does="Make the job of a schedule now, outside its slots.",
        handler=run_now,
        answers={201: RunNow},
        problems=_NAMED,
    ),
    Endpoint(
        method="DELETE",
        path="/v1/schedules/{name}",
        scope=Scope.OPERATE,
        does="Remove a schedule. The jobs that it made stay.",
        handler=remove,
        answers={204: None},
        problems=_NAMED,
    ),
)
