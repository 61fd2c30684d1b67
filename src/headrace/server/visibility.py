"""What a caller may know of: a token bound to queues or a tenant sees nothing else, exactly as if it were not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as changed

from headrace.model.job import Job, JobId
from headrace.model.lease import Presence
from headrace.model.records import Filter, Page, Pause, PauseKind, QueueStats, Stats
from headrace.server.auth import Principal
from headrace.server.http.call import Call
from headrace.server.http.problems import Problem, not_found
from headrace.store import pages
from headrace.task.codec import readable_options

if TYPE_CHECKING:
    from headrace.server.state import ServerState


def tenant_of(job: Job) -> str:
    """Whose job it is; where tenants do not take turns that is no part of its lane."""
    if job.tenant or not job.options:
        return job.tenant
    return readable_options(job.options).tenant or ""


def sees(principal: Principal, job: Job) -> bool:
    """Whether they may know of this job."""
    return not principal.bound or principal.sees(job.queue, tenant_of(job))


def no_job() -> Problem:
    """There is none, or none that they may know of."""
    return Problem(404, "job_not_found", "there is no such job: it was pruned or deleted, or its id is mistyped")


async def job(call: Call, id: JobId) -> Job:
    """One job that the caller may see."""
    (found,) = await call.service.store.get([id])
    if found is None or not sees(call.principal, found):
        raise no_job()
    return found


async def jobs(call: Call, ids: list[JobId]) -> list[Job]:
    """Those of these jobs that there are and that the caller may see."""
    found = await call.service.store.get(ids)
    return [each for each in found if each is not None and sees(call.principal, each)]


def queue(principal: Principal, name: str) -> None:
    """A 404 unless they may know of this queue as a whole."""
    if not principal.sees(name, None):
        raise not_found("there is no such queue")


def stats(principal: Principal, found: Stats) -> list[QueueStats]:
    """The figures of the queues that they may know of as a whole."""
    return [each for each in found.queues if principal.sees(each.queue, None)]


def workers(principal: Principal, found: Sequence[Presence]) -> list[Presence]:
    """Workers of the queues that they may know of, without a word of what else those do."""
    if not principal.bound:
        return list(found)
    seen = [changed(each, queues=_known(principal, each.queues), tasks=()) for each in found]
    return [each for each in seen if each.queues]


def _known(principal: Principal, queues: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in queues if principal.sees(name, None))


# ── pauses ───────────────────────────────────────────────────────────────────


def owns(principal: Principal, kind: PauseKind, name: str) -> bool:
    """Whether it is theirs to pause: a queue is the affair of all its tenants, a tenant that of all its queues."""
    match kind:
        case "queue":
            return principal.sees(name, None)
        case "tenant":
            return principal.queues is None and principal.tenant in {None, name}
        case "task":
            return not principal.bound


def pause(principal: Principal, found: Pause) -> Pause | None:
    """What they may know of a pause; by whom it is, only where they could have been it. A task's holds for everybody."""
    if owns(principal, found.kind, found.name):
        return found
    match found.kind:
        case "queue":
            known = principal.queues is not None and found.name in principal.queues
        case "tenant":
            known = found.name == principal.tenant
        case "task":
            known = True
    return replace(found, by="") if known else None


# ── lists ────────────────────────────────────────────────────────────────────


async def find(service: ServerState, principal: Principal, where: Filter, *, before: JobId | None, limit: int) -> Page:
    """Jobs by filter, of those that they may see; a page may be shorter than it could be."""
    if not principal.bound:
        return await service.store.find(where, before=before, limit=limit)
    asked = _parts(service, principal, where)
    page = pages.merge([await service.store.find(each, before=before, limit=limit) for each in asked], limit)
    return Page([each for each in page.jobs if sees(principal, each)], page.next)


def _parts(service: ServerState, principal: Principal, where: Filter) -> list[Filter]:
    """Filters that together find whatever of it they may see, and little else."""
    tenant = principal.tenant
    if tenant is not None:
        if where.tenant not in {None, tenant}:
            return []
        where = replace(where, tenant=tenant)
    queues = principal.queues
    if queues is not None and where.queue is not None:
        queues = queues & {where.queue}
    found = [where] if queues is None else [replace(where, queue=name) for name in sorted(queues)]
    if tenant is None:
        return found
    # Where tenants do not take turns, whose job it is stands in the job alone.
    unfair = [each.name for each in service.app.queues.values() if each.fair == "off"]
    seen = [name for name in unfair if where.queue in {None, name} and (queues is None or name in queues)]
    return found + [replace(where, queue=name, tenant="") for name in seen]
