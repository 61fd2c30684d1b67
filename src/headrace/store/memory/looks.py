"""The verbs that only look: get, find, stats, workers, ended, lanes, ahead."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from headrace.model.job import Job, JobId, JobState
from headrace.model.lane import MAX_LANES, Ahead, Blocked, LaneView
from headrace.model.lease import Presence
from headrace.model.records import Ending, Filter, Page, QueueStats, Stats
from headrace.store.memory.base import Base
from headrace.store.memory.limits import uses

_SEEN_WITHIN = timedelta(minutes=1)
_PASSED_OVER = 20
"""Jobs that do not fit, per call of `find`: small, so that tests meet callers that take a short page for the end."""
_COUNTED = 10_000
"""Where the count of a lane's jobs ends."""


class Looking(Base):
    """See the contract."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        stored = [self._jobs.get(id.int) for id in ids]
        jobs = [job.view(self._clock.now(), history=True) if job else None for job in stored]
        return [job and replace(job, worker_name=self._names.get(job.worker) if job.worker else None) for job in jobs]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        numbers = sorted((n for n in self._jobs if before is None or n < before.int), reverse=True)
        now, jobs, passed = self._clock.now(), list[Job](), 0
        for number in numbers:
            job = self._jobs[number]
            if not job.fits(where):
                passed += 1
                if passed > _PASSED_OVER:
                    return Page(jobs, job.id)
            elif len(jobs) == limit:
                return Page(jobs, jobs[-1].id)
            else:
                jobs.append(job.view(now, history=False))
        return Page(jobs, None)

    async def stats(self) -> Stats:
        now = self._clock.now()
        counts: defaultdict[tuple[str, JobState], int] = defaultdict(int)
        oldest: dict[str, datetime] = {}
        for job in self._jobs.values():
            counts[job.queue, job.state] += 1
            if job.state is JobState.READY:
                oldest[job.queue] = min(oldest.get(job.queue, job.enqueued_at), job.enqueued_at)
        return Stats(
            [
                QueueStats(
                    queue=queue,
                    ready=counts[queue, JobState.READY],
                    scheduled=counts[queue, JobState.SCHEDULED],
                    running=counts[queue, JobState.RUNNING],
                    blocked=counts[queue, JobState.BLOCKED],
                    dead=counts[queue, JobState.DEAD],
                    done_total=self._totals[queue].done,
                    failed_total=self._totals[queue].failed,
                    enqueued_total=self._totals[queue].enqueued,
                    oldest_ready=now - oldest[queue] if queue in oldest else None,
                    paused=self._held_back("queue", queue) is not False,
                )
                for queue in sorted(self._totals.keys() | {name for kind, name in self._pauses if kind == "queue"})
                if queue in self._totals or self._held_back("queue", queue) is not False
            ]
        )

    async def workers(self) -> list[Presence]:
        since = self._clock.now() - _SEEN_WITHIN
        return [replace(presence, seen_at=at) for presence, at in self._workers.values() if at > since]

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        endings = [
            Ending(job.id, job.state, job.finished_at, job.queue, job.new.task, job.new.lane.tenant)
            for job in self._jobs.values()
            if job.finished_at is not None and job.finished_at >= since
        ]
        return sorted(endings, key=lambda ending: (ending.at, ending.id))[:limit]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        views: list[LaneView] = []
        limit = min(limit, MAX_LANES)
        for queue in dict.fromkeys(queues):
            here = [(lane, jobs) for lane, jobs in self._line.lanes() if lane.queue == queue]
            for lane, jobs in here if len(here) <= limit else random.sample(here, limit):
                view = LaneView(
                    queue=queue,
                    priority=lane.priority,
                    tenant=lane.tenant,
                    id=lane.id,
                    jobs=min(len(jobs), _COUNTED),
                    oldest=jobs[0].enqueued_at,
                )
                views.append(view)
        return views

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        job = self._jobs.get(id.int)
        if job is None or job.state not in {JobState.READY, JobState.SCHEDULED}:
            return None
        own = job.new.lane
        lane = higher = 0
        blocked: list[Blocked] = []
        if job.state is JobState.READY:
            ready = [x for x in self._jobs.values() if x.state is JobState.READY and x.queue == own.queue]
            lane = sum(x.new.lane == own and x.id < job.id for x in ready)
            higher = sum(x.new.lane.priority > own.priority for x in ready)
            blocked = [
                replace(block, by=self._users(block.key)) if block.concurrency is not None else block
                for block in self._limits.blocked(own, self._clock.now())
            ]
        queue, tenant = self._pause("queue", own.queue), self._pause("tenant", own.tenant)
        return Ahead(
            lane=min(lane, limit),
            higher=min(higher, limit),
            limit=limit,
            suspect=job.suspect,
            paused_by=queue.by if queue else None,
            paused_since=queue.since if queue else None,
            paused_until=queue.until if queue else None,
            tenant_paused_by=tenant.by if tenant else None,
            tenant_paused_since=tenant.since if tenant else None,
            tenant_paused_until=tenant.until if tenant else None,
            blocked=tuple(blocked),
        )

    def _users(self, key: str) -> tuple[JobId, ...]:
        """Some of the running jobs that hold units of a limit key."""
        jobs = [job for lease in self._leases.values() for _, job in lease.open()]
        return tuple(job.id for job in jobs if uses(job.new.lane, key))[:5]
