"""What a caller may see. For a token bound to queues or a tenant, everything else does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.model.job import Job, JobId
from headrace.model.lease import Presence
from headrace.model.records import Filter, Page, Pause, PauseKind, QueueStats, Stats
from headrace.operate.search import Search
from headrace.server.auth import Principal
from headrace.server.http.call import Call
from headrace.server.http.problems import Problem, not_found
from headrace.store import pages
from headrace.task.codec import readable_options

if TYPE_CHECKING:
    from headrace.server.state import ServerState

WITHIN = 0.08
"""Seconds after which a look at many jobs asks the store no further, and answers where to go on."""


def tenant_of(job: Job) -> str:
    """The job's tenant, which is not part of its lane in queues where tenants do not take turns."""
    if job.tenant or not job.options:
        return job.tenant
    return readable_options(job.options).tenant or ""


def sees(principal: Principal, job: Job) -> bool:
    """Whether the caller may see this job."""
    return not principal.bound or principal.sees(job.queue, tenant_of(job))


def no_job() -> Problem:
    """The error for a job that does not exist, or that the caller may not see."""
    return Problem(404, "job_not_found", "there is no such job: it was pruned or deleted, or its id is mistyped")


async def job(call: Call, id: JobId) -> Job:
    """One job that the caller may see."""
    (stored,) = await call.service.store.get([id])
    if stored is None or not sees(call.principal, stored):
        raise no_job()
    return stored


async def jobs(call: Call, ids: list[JobId]) -> list[Job]:
    """Those of these jobs that exist and that the caller may see."""
    stored = await call.service.store.get(ids)
    return [job for job in stored if job is not None and sees(call.principal, job)]


def queue(principal: Principal, name: str) -> None:
    """Raise a 404 unless the caller may see this whole queue."""
    if not principal.sees(name, None):
        raise not_found("there is no such queue")


def stats(principal: Principal, figures: Stats) -> list[QueueStats]:
    """The figures of the queues that the caller may see as a whole."""
    return [queue for queue in figures.queues if principal.sees(queue.queue, None)]


def workers(principal: Principal, presences: Sequence[Presence]) -> list[Presence]:
    """Workers of the queues that the caller may see, without their other queues."""
    if not principal.bound:
        return list(presences)
    seen = [replace(presence, queues=_known(principal, presence.queues), tasks=()) for presence in presences]
    return [presence for presence in seen if presence.queues]


def owns_worker(principal: Principal, presence: Presence) -> bool:
    """Whether the caller may give orders to a worker, because it may see all jobs that the worker runs."""
    return not principal.bound or (bool(presence.queues) and _known(principal, presence.queues) == presence.queues)


def _known(principal: Principal, queues: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in queues if principal.sees(name, None))


# ── pauses ───────────────────────────────────────────────────────────────────


def owns(principal: Principal, kind: PauseKind, name: str) -> bool:
    """Whether the caller may pause it. A paused queue concerns all its tenants, a paused tenant all its queues."""
    match kind:
        case "queue":
            return principal.sees(name, None)
        case "tenant":
            return principal.queues is None and principal.tenant in {None, name}
        case "task":
            return not principal.bound


def pause(principal: Principal, stored: Pause) -> Pause | None:
    """A pause as the caller may see it. The author is shown only if the caller could have made the pause."""
    if owns(principal, stored.kind, stored.name):
        return stored
    match stored.kind:
        case "queue":
            known = principal.queues is not None and stored.name in principal.queues
        case "tenant":
            known = stored.name == principal.tenant
        case "task":
            known = True
    return replace(stored, by="") if known else None


# ── lists ────────────────────────────────────────────────────────────────────


async def find(service: ServerState, principal: Principal, where: Filter, *, before: JobId | None, limit: int) -> Page:
    """Jobs by filter that the caller may see. A page may be shorter than the limit."""
    if not principal.bound:
        return await service.store.find(where, before=before, limit=limit)
    asked = _parts(service, principal, where)
    page = pages.merge([await service.store.find(part, before=before, limit=limit) for part in asked], limit)
    return Page([job for job in page.jobs if sees(principal, job)], page.next)


def search(service: ServerState, principal: Principal) -> Search:
    """Searches and counts the jobs that the caller may see, with their arguments masked."""
    return Search(service.store, service.app.tasks.get, partial(find, service, principal), within=WITHIN)


def _parts(service: ServerState, principal: Principal, where: Filter) -> list[Filter]:
    """Filters that together find what the caller may see, and little else."""
    tenant = principal.tenant
    if tenant is not None:
        if where.tenant not in {None, tenant}:
            return []
        where = replace(where, tenant=tenant)
    queues = principal.queues
    if queues is not None and where.queue is not None:
        queues = queues & {where.queue}
    filters = [where] if queues is None else [replace(where, queue=name) for name in sorted(queues)]
    if tenant is None:
        return filters
    # In queues where tenants do not take turns, only the job itself has the tenant.
    unfair = [queue.name for queue in service.app.queues.values() if queue.fair == "off"]
    seen = [name for name in unfair if where.queue in {None, name} and (queues is None or name in queues)]
    return filters + [replace(where, queue=name, tenant="") for name in seen]
