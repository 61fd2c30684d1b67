"""One queue in detail: which tenants and tasks wait and run, and which limits their jobs need. Every read is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

import msgspec

from headrace.model.job import Job, JobId, JobState
from headrace.model.lane import MAX_LANES, split_limit
from headrace.model.records import Filter
from headrace.store.contract import Store

LOOK = 1_000
"""Waiting jobs, and as many running jobs, that one look reads for tasks and limits."""
TOP = 20
"""Tenants and tasks that are named."""
_STEP = 250
_CALLS = 20


class TenantBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one tenant in a queue."""

    tenant: str
    """Empty: jobs without a tenant."""
    ready: int
    """Jobs that wait. Of one lane at most 10,000 are counted."""
    oldest: datetime | None
    """When the first of them was enqueued."""
    running: int
    """Of the running jobs that were read."""


class TaskBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one task in a queue, of those that were read."""

    task: str
    ready: int
    running: int


class QueueDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Which tenants and tasks wait and run in one queue."""

    tenants: list[TenantBacklog]
    """The tenants with the most waiting jobs, then those with the most running jobs, at most TOP."""
    all_tenants: int
    """How many tenants were met."""
    tasks: list[TaskBacklog]
    """The tasks with the most jobs, at most TOP."""
    limits: list[str]
    """The names of limits that these jobs need."""
    whole: bool
    """Whether all lanes and all jobs of the queue that wait or run were read. Otherwise the figures are those of a part."""


async def detail(store: Store, queue: str) -> QueueDetail:
    """Read one queue: at most MAX_LANES lanes, and LOOK waiting and LOOK running jobs."""
    lanes = await store.lanes([queue])
    ready, all_ready = await _some(store, Filter(queue=queue, states=frozenset({JobState.READY})))
    running, all_running = await _some(store, Filter(queue=queue, states=frozenset({JobState.RUNNING})))
    waits = Counter[str]()
    oldest: dict[str, datetime] = {}
    for lane in lanes:
        waits[lane.tenant] += lane.jobs
        oldest[lane.tenant] = min(lane.oldest, oldest.get(lane.tenant, lane.oldest))
    runs = Counter(job.tenant for job in running)
    tenants = sorted({*waits, *runs}, key=lambda tenant: (-waits[tenant], -runs[tenant], tenant))
    tasks_ready, tasks_running = Counter(job.task for job in ready), Counter(job.task for job in running)
    tasks = sorted({*tasks_ready, *tasks_running}, key=lambda task: (-tasks_ready[task], -tasks_running[task], task))
    return QueueDetail(
        tenants=[
            TenantBacklog(tenant=tenant, ready=waits[tenant], oldest=oldest.get(tenant), running=runs[tenant])
            for tenant in tenants[:TOP]
        ],
        all_tenants=len(tenants),
        tasks=[TaskBacklog(task=task, ready=tasks_ready[task], running=tasks_running[task]) for task in tasks[:TOP]],
        limits=sorted({split_limit(limit)[0] for limit in _limits([*ready, *running])}),
        whole=all_ready and all_running and len(lanes) < MAX_LANES,
    )


def _limits(jobs: Iterable[Job]) -> set[str]:
    return {limit for job in jobs for limit in job.limits}


async def _some(store: Store, where: Filter) -> tuple[list[Job], bool]:
    """Up to LOOK jobs, and whether these are all."""
    jobs: list[Job] = []
    before: JobId | None = None
    for _ in range(_CALLS):
        page = await store.find(where, before=before, limit=min(_STEP, LOOK - len(jobs)))
        jobs, before = jobs + page.jobs, page.next
        if before is None or len(jobs) >= LOOK:
            break
    return jobs, before is None
