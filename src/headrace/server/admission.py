"""Which jobs a caller may enqueue. Every job that arrives by `/v1` or `/v1/store`, or in a schedule, is checked here.

Each API reads its own format and reports where a mistake is. This module decides once for both which jobs are well
formed, to which tenant they may belong, and the names of their keys and locks in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from headrace.errors import BadArguments, ConfigError
from headrace.model.job import Key, NewJob, UniqueLock
from headrace.model.lane import check_key
from headrace.policy.schedule import Schedule, job_now
from headrace.server.auth import Principal
from headrace.server.http.problems import not_found
from headrace.server.producer import signed
from headrace.server.state import ServerState
from headrace.task import job_checks


async def admit(
    service: ServerState, principal: Principal, jobs: Sequence[NewJob], *, made_here: bool = False
) -> list[NewJob]:
    """The jobs to be stored. Raises Problem or ConfigError if one of them is not allowed.

    `made_here`: this server made them from their tasks, so their unique locks are those that the tasks declare. Arguments that
    hold references cannot be decoded again to check it.
    """
    job_checks.check_jobs(jobs, service.app.settings.max_payload)
    for url in _webhooks(jobs):
        service.app.webhooks.check_webhook(url)
    if principal.bound and not all(principal.sees(job.lane.queue, job_checks.tenant_of(job)) for job in jobs):
        raise not_found("there is no such queue, or no such tenant")
    await service.queue_names.admit(principal, {job.lane.queue for job in jobs})
    return [signed(_own(service, principal, job, made_here=made_here), principal) for job in jobs]


async def admit_schedule(service: ServerState, principal: Principal, schedule: Schedule) -> Schedule:
    """A schedule whose job this caller may enqueue. Raises Problem or ConfigError."""
    job = job_now(schedule)
    (own,) = await admit(service, principal, [job])
    return schedule if own == job else replace(schedule, job=replace(schedule.job, unique=own.unique))


def _webhooks(jobs: Iterable[NewJob]) -> set[str]:
    read = (job_checks.read_options(job) for job in jobs if job.options is not None)
    return {own.webhook for own in read if own is not None and own.webhook is not None}


# ── keys and locks ───────────────────────────────────────────────────────────


def own_key(principal: Principal, name: str) -> str:
    """The stored form of an idempotency key. It contains the tenant, so that tenants cannot see each other's keys."""
    # No tenant's name contains a space, so the two parts are unambiguous.
    return name if principal.tenant is None else check_key(f"{principal.tenant} {name}")


def given_key(principal: Principal, name: str) -> str:
    """The key as the caller gave it."""
    return name if principal.tenant is None else name.removeprefix(f"{principal.tenant} ")


def _own(service: ServerState, principal: Principal, job: NewJob, *, made_here: bool) -> NewJob:
    if job.key is None and job.unique is None:
        return job
    key, lock = job.key, job.unique
    if key is not None:
        key = Key(own_key(principal, key.name), key.ttl, key.digest)
    if lock is not None and not made_here:
        lock = _own_lock(service, principal, job, lock)
    return replace(job, key=key, unique=lock)


def _own_lock(service: ServerState, principal: Principal, job: NewJob, given: UniqueLock) -> UniqueLock:
    """The lock that the task declares. For a task that this app does not know: a lock that no other tenant can name.

    A lock may replace the job that holds it, so a bound caller must not choose its name.
    """
    task = service.app.tasks.get(job.task)
    if task is None:
        binding = msgspec.json.encode([principal.tenant, sorted(principal.queues or ())])
        prefix = hashlib.blake2b(binding, digest_size=8).hexdigest()
        if given.name.startswith(f"{prefix} "):
            return given  # A worker fires a schedule. Its job was checked when the schedule was written.
        return replace(given, name=check_key(f"{prefix} {given.name}"))
    declared = task.options.unique
    try:
        args, kwargs = task.codec.decode(job.payload)
    except BadArguments as error:
        raise ConfigError(f"{job.task}: {error}") from None
    if declared is None or declared.lock_for(args, kwargs, job.payload) != given:
        raise ConfigError(f"{job.task}: its unique lock is not the one that the task declares")
    return given
