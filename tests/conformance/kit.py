"""Short words for the conformance cases: put, take, settle, look, and a dump of everything visible."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.model.gate import Wait
from headrace.model.job import Batch, Due, Failure, Job, JobId, JobState, Key, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Lease, Presence, Token, WorkerId, new_token, new_worker_id
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.model.records import Filter, LimitRule, QueueStats, Retention, Stats
from headrace.store.contract import Store

TTL = timedelta(seconds=15)
LONG = timedelta(days=1)
SECOND = timedelta(seconds=1)
WORKER = new_worker_id()
JANITOR = new_worker_id()

RELEASE = Again(0, 0)
SUSPECT = Again(0, 0, suspect=True)
DEAD = Finish(JobState.DEAD, note="max_attempts")
CANCELLED = Finish(JobState.CANCELLED, note="enough")


def new(
    task: str = "t",
    payload: bytes = b"{}",
    *,
    queue: str = "default",
    priority: int = 0,
    tenant: str = "",
    limits: tuple[str, ...] = (),
    due: Due = None,
    key: Key | None = None,
    options: bytes | None = None,
    unique: UniqueLock | None = None,
    wait: Wait | None = None,
) -> NewJob:
    return NewJob(task, payload, Lane(queue, priority, tenant, limits), due, key, options, unique, wait)


def key(name: str, digest: bytes = b"d", ttl: timedelta = LONG) -> Key:
    return Key(name, ttl, digest)


def failure(attempt: int = 1, kind: str = "ValueError", message: str = "no") -> Failure:
    at = datetime(2026, 1, 1, 11, 0, 0, 654321, tzinfo=UTC)
    return Failure(attempt, kind, message, "Traceback …\n  ValueError: no", at, "host:1")


def batch(*jobs: NewJob) -> Batch:
    return Batch(new_batch(), list(jobs))


async def put_jobs(store: Store, *jobs: NewJob) -> list[JobId]:
    """Enqueue these in one call; their ids."""
    made = batch(*jobs)
    answer = await store.enqueue(made)
    assert not answer.existing
    return [job_id(made.id, ord) for ord in range(len(jobs))]


async def put(store: Store, count: int = 1, **options: Any) -> list[JobId]:
    """Enqueue `count` like jobs in one call; their ids."""
    return await put_jobs(store, *[new(**options)] * count)


async def claim(
    store: Store,
    limit: int = 100,
    *queues: str,
    worker: WorkerId = WORKER,
    ttl: timedelta = TTL,
    token: Token | None = None,
    **flow: Any,
) -> Lease | None:
    return await store.claim(Ask(worker, queues or ("default",), limit, ttl, token or new_token(), **flow))


async def take(
    store: Store, limit: int = 100, *queues: str, worker: WorkerId = WORKER, ttl: timedelta = TTL, **flow: Any
) -> Lease:
    lease = await claim(store, limit, *queues, worker=worker, ttl=ttl, **flow)
    assert lease is not None, "nothing to claim"
    return lease


def ids(lease: Lease | None) -> list[JobId]:
    return [job.id for job in lease.jobs] if lease else []


async def rule(store: Store, name: str, **figures: Any) -> int:
    """Write a limit's rule, whatever was there; without figures none."""
    found = (await store.limits()).get(name)
    version = await store.limit(name, LimitRule(**figures) if figures else None, found.version if found else None)
    assert version is not None
    return version


def tenants(lease: Lease | None) -> list[str]:
    return [job.tenant for job in lease.jobs] if lease else []


async def settle_all(store: Store, lease: Lease, settlement: Settlement = DONE) -> None:
    assert await store.settle(lease.token, [(at, settlement) for at in range(len(lease.jobs))]) == frozenset()


async def run_one(store: Store, settlement: Settlement = DONE, *queues: str) -> JobId:
    """Claim one job and settle it."""
    lease = await take(store, 1, *queues)
    await settle_all(store, lease, settlement)
    return lease.jobs[0].id


async def look(store: Store, id: JobId) -> Job:
    [job] = await store.get([id])
    assert job is not None, f"{id} is gone"
    return job


async def states(store: Store, wanted: Sequence[JobId]) -> list[JobState | None]:
    return [job and job.state for job in await store.get(wanted)]


async def state(store: Store, id: JobId) -> JobState | None:
    return (await states(store, [id]))[0]


async def find_all(store: Store, where: Filter | None = None, *, limit: int = 50) -> list[Job]:
    """Every page of a find."""
    found: list[Job] = []
    before: JobId | None = None
    while True:
        page = await store.find(where or Filter(), before=before, limit=limit)
        found += page.jobs
        if page.next is None:
            return found
        assert before is None or page.next.int < before.int
        assert all(job.id.int >= page.next.int for job in page.jobs)
        before = page.next


async def expire(store: Store, keep: Retention, limit: int = 100) -> int:
    """Delete the dead letters past retention; how many went."""
    gone = 0
    while found := await store.expired_dead(keep, limit):
        assert len(found) <= limit
        assert await store.delete(found, states={JobState.DEAD}) == frozenset(found)
        gone += len(found)
    return gone


async def queue_stats(store: Store, queue: str = "default") -> QueueStats:
    return next((q for q in (await store.stats()).queues if q.queue == queue), QueueStats(queue=queue))


async def counts(store: Store, queue: str = "default") -> dict[str, int]:
    """What is in a queue right now, zeros left out."""
    q = await queue_stats(store, queue)
    now = {"ready": q.ready, "scheduled": q.scheduled, "running": q.running, "blocked": q.blocked, "dead": q.dead}
    return {name: count for name, count in now.items() if count}


async def dump(store: Store) -> tuple[list[Job | None], Stats, list[Presence]]:
    """Everything an onlooker can see: to prove that something changed nothing."""
    found = await find_all(store, limit=200)
    jobs = await store.get([job.id for job in found])
    workers = sorted(await store.workers(), key=lambda presence: presence.id)
    return jobs, await store.stats(), workers
