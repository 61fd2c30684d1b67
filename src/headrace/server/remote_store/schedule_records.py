"""Schedules written through the http store: checks what workers and operators may change, and the job."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from headrace.model.cron import zone
from headrace.model.scope import Scope
from headrace.operate.schedules import KIND, decode
from headrace.policy.schedule_entry import ScheduleEntry, encode, fingerprint, read, slot_job_id
from headrace.server.admission import admit_schedule
from headrace.server.auth import LOCAL, Principal
from headrace.server.http.problems import missing_scope
from headrace.server.remote_store import audit as store_audit
from headrace.server.remote_store.audit import OperatorAction
from headrace.server.remote_store.shown import masked_template
from headrace.server.state import ServerState


class ScheduleChange(NamedTuple):
    """What is written, and the action for the audit log."""

    value: bytes | None
    operator_action: OperatorAction | None


async def schedule(service: ServerState, principal: Principal, name: str, value: bytes | None) -> ScheduleChange:
    """What this caller may write as this schedule. Raises Problem or ConfigError."""
    old = (await service.store.records(KIND)).get(name)
    before = None if old is None else decode(name, old)
    after = None if value is None else read(name, value)
    if before is not None and after is not None and not principal.may(Scope.WORK):
        after = _unmasked(service, before, after)
    operator_action = store_audit.of_schedule(name, before, after)
    if not principal.may(Scope.OPERATE):
        if not principal.may(Scope.ENQUEUE):
            raise missing_scope(Scope.ENQUEUE)  # A schedule enqueues jobs.
        if operator_action is not None or after is None or not _by_worker(name, before, after):
            raise missing_scope(Scope.OPERATE)
    if after is None:
        return ScheduleChange(None, operator_action)
    zone(after.schedule.tz)
    if before is None or before.schedule != after.schedule:
        after = replace(after, schedule=await admit_schedule(service, principal, after.schedule))
    if after.paused and principal is not LOCAL and (before is None or not before.paused):
        after = replace(after, paused_by=principal.name)
    return ScheduleChange(encode(after), operator_action)


def _unmasked(service: ServerState, before: ScheduleEntry, after: ScheduleEntry) -> ScheduleEntry:
    """An operator writes the job of a changed schedule back as it was shown, masked. The stored arguments stay."""
    stored, given = before.schedule.job, after.schedule.job
    if given == stored or given != masked_template(service.app, stored):
        return after
    return replace(after, schedule=replace(after.schedule, job=stored))


def _by_worker(name: str, before: ScheduleEntry | None, after: ScheduleEntry) -> bool:
    """Whether this is a change by a deploy or a tick. A tick may cancel only jobs of the schedule."""
    if after.declared and (before is None or before.schedule != after.schedule):
        if after.digest != fingerprint(after.schedule):
            return False
    elif before is None:
        return False
    if before is None:
        return after == ScheduleEntry(schedule=after.schedule, cursor=after.cursor, digest=after.digest, app=after.app)
    ids: set[UUID | None] = {before.last, *(slot_job_id(name, slot) for slot in before.pending)}
    return after.last in ids and after.cancel in {None, before.cancel, before.last}
