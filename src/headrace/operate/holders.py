"""Which running jobs hold the units of a limit: read from the list of running jobs, a bounded number per call."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from uuid import UUID

import msgspec

from headrace.model.job import Job, JobId, JobState
from headrace.model.lane import split_limit
from headrace.model.records import Filter
from headrace.store.contract import Store

LOOK = 2_000
"""Running jobs that one call reads."""
_STEP = 250
_CALLS = 50
_RUNNING = Filter(states=frozenset({JobState.RUNNING}))


class LimitHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that holds units of a limit."""

    id: JobId
    task: str
    queue: str
    tenant: str
    key: str
    """The key whose units it holds: the limit's name, or one key of it such as `shop:acme`."""
    units: int
    since: datetime | None
    """When a worker claimed it."""
    worker: UUID | None


class LimitHolders(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that hold units, newest id first, and how many jobs were looked at for them."""

    items: list[LimitHolder]
    held: dict[str, int]
    """The units that these jobs hold, by key."""
    looked_at: int
    next: JobId | None
    """Pass as `before` to go on; None: no running job is left."""


async def holders(store: Store, name: str, *, before: JobId | None = None, look: int = LOOK) -> LimitHolders:
    """The running jobs that hold units of this limit, or of this one key of it."""
    items: list[LimitHolder] = []
    looked = calls = 0
    while True:
        page = await store.find(_RUNNING, before=before, limit=min(_STEP, look - looked))
        looked, calls, before = looked + len(page.jobs), calls + 1, page.next
        items += [holder for job in page.jobs for holder in _held(job, name)]
        if before is None or looked >= look or calls >= _CALLS:
            break
    held = Counter[str]()
    for holder in items:
        held[holder.key] += holder.units
    return LimitHolders(items=items, held=dict(held.most_common()), looked_at=looked, next=before)


def _held(job: Job, name: str) -> list[LimitHolder]:
    parts = [split_limit(limit) for limit in job.limits]
    return [
        LimitHolder(
            id=job.id,
            task=job.task,
            queue=job.queue,
            tenant=job.tenant,
            key=key,
            units=units,
            since=job.claimed_at,
            worker=job.worker,
        )
        for limit, key, units in parts
        if name in {limit, key}
    ]
