"""The memory store: the contract in its plainest form, the specification that every other store is compared with."""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from headrace.clock import Clock, SystemClock
from headrace.errors import IdempotencyConflict
from headrace.job import FINISHED, Batch, Claimed, Due, Failure, Job, JobId, JobState, NewJob, job_id, split_id
from headrace.lane import Ahead
from headrace.lease import MAX_LEASE, Ask, Lease, Orphan, Presence, Pulse, Stop, Token, WorkerId, new_token
from headrace.outcome import Again, Settlement
from headrace.store.contract import (
    CancelAnswer,
    Enqueued,
    Filter,
    Finding,
    Page,
    Progress,
    Promoted,
    Pruned,
    QueueStats,
    Record,
    Retention,
    Stats,
)

_SEEN_WITHIN = timedelta(minutes=1)


@dataclass(slots=True, eq=False)
class _Job:
    """One job, and all that ever changes about it."""

    id: JobId
    new: NewJob
    enqueued_at: datetime
    state: JobState = JobState.READY
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    run_at: datetime | None = None
    note: str | None = None
    lease: _Lease | None = None
    cancelling: bool = False
    cancel_reason: str | None = None
    finished_at: datetime | None = None
    result: bytes | None = None
    result_until: datetime | None = None
    history: list[Failure] = field(default_factory=list[Failure])

    @property
    def queue(self) -> str:
        return self.new.lane.queue


@dataclass(slots=True, eq=False)
class _Lease:
    token: Token
    worker: WorkerId
    claimed_at: datetime
    expires_at: datetime
    suspect: bool
    jobs: list[_Job | None]
    """By position; None where settled."""
    cause: str = "lease expired"

    def open(self) -> Iterator[tuple[int, _Job]]:
        return ((position, job) for position, job in enumerate(self.jobs) if job is not None)


@dataclass(slots=True)
class _Key:
    job: JobId
    digest: bytes
    until: datetime


@dataclass(slots=True)
class _Totals:
    enqueued: int = 0
    done: int = 0
    failed: int = 0


_LaneHeap = list[int]
"""Ids as numbers, a heap. Whoever is not READY any more is skipped when met, never searched for."""


@dataclass(slots=True)
class _Ring:
    """The lanes of one queue and priority that have jobs; the first one's turn is next."""

    lanes: dict[tuple[str, int], _LaneHeap] = field(default_factory=dict[tuple[str, int], _LaneHeap])
    served: int = 0
    """When a job was last taken: queues of one priority take turns, too."""


class MemoryStore:
    """Everything in dictionaries; gone with the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: dict[int, _Job] = {}
        self._batches: dict[int, Enqueued] = {}
        self._keys: dict[tuple[str, str], _Key] = {}
        self._ready: dict[tuple[int, str], _Ring] = {}
        self._delayed: list[tuple[datetime, int]] = []
        self._leases: dict[Token, _Lease] = {}
        self._totals: defaultdict[str, _Totals] = defaultdict(_Totals)
        self._paused: dict[str, tuple[str, datetime]] = {}
        """By whom, since when."""
        self._workers: dict[WorkerId, tuple[Presence, datetime]] = {}
        self._bells: dict[asyncio.Event, frozenset[str]] = {}
        self._turn = 0
        self._records: dict[tuple[str, str], Record] = {}
        self._last_version = 0

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        del progress
        return []

    async def check(self) -> list[Finding]:
        return [
            Finding("warning", "durability", "jobs live in this process only: use SQLite or PostgreSQL to keep them")
        ]

    async def now(self) -> datetime:
        return self._clock.now()

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        if (before := self._batches.get(batch.id.int)) is not None:
            return before
        now = self._clock.now()
        made: dict[tuple[str, str], _Key] = {}
        existing: dict[int, JobId] = {}
        for ord, new in enumerate(batch.jobs):
            if new.key is None:
                continue
            name = (new.task, new.key.name)
            known = made.get(name) or self._keys.get(name)
            if known is None or known.until <= now:
                made[name] = _Key(job_id(batch.id, ord), new.key.digest, now + new.key.ttl)
            elif known.digest == new.key.digest:
                existing[ord] = known.job
            else:
                raise IdempotencyConflict(new.task, new.key.name, known.job)
        self._keys.update(made)
        for ord, new in enumerate(batch.jobs):
            if ord in existing:
                continue
            job = _Job(job_id(batch.id, ord), new, now)
            self._jobs[job.id.int] = job
            self._totals[job.queue].enqueued += 1
            self._put(job, new.due)
        answer = Enqueued(existing)
        if len(existing) < len(batch.jobs):
            self._batches[batch.id.int] = answer
        return answer

    async def claim(self, ask: Ask) -> Lease | None:
        now = self._clock.now()
        limit = min(ask.limit, MAX_LEASE)
        taken: list[_Job] = []
        while len(taken) < limit and (job := self._take(ask.queues, only_if_alone=bool(taken))):
            taken.append(job)
            if job.suspect:
                break
        if not taken:
            return None
        lease = _Lease(ask.token, ask.worker, now, now + ask.ttl, taken[0].suspect, list(taken))
        self._leases[ask.token] = lease
        for job in taken:
            job.state, job.lease, job.note = JobState.RUNNING, lease, None
            job.attempt += 1
        return Lease(ask.token, [_claimed(job) for job in taken], lease.suspect)

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        now = self._clock.now()
        if presence is not None:
            self._workers[presence.id] = presence, now
        alive = [self._leases[token] for token in dict.fromkeys(tokens) if token in self._leases]
        for lease in alive:
            lease.expires_at = now + ttl
        stops = [Stop(lease.token, position) for lease in alive for position, job in lease.open() if job.cancelling]
        return Pulse(frozenset(tokens) - self._leases.keys(), tuple(stops))

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        lease = self._leases.get(token)
        if lease is None:
            return frozenset(position for position, _ in settlements)
        refused: set[int] = set()
        for position, settlement in settlements:
            if not 0 <= position < len(lease.jobs):
                refused.add(position)
            elif (job := lease.jobs[position]) is not None:
                lease.jobs[position] = None
                self._apply(job, settlement)
        self._end_if_empty(lease)
        return frozenset(refused)

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        bell = asyncio.Event()
        self._bells[bell] = frozenset(queues)
        try:
            async with asyncio.timeout(timeout):
                return await bell.wait()
        except TimeoutError:
            return False
        finally:
            del self._bells[bell]

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        now = self._clock.now()
        moved = 0
        while moved < limit and (job := self._earliest()) and job.run_at is not None and job.run_at <= now:
            self._put(job, None)
            moved += 1
        job = self._earliest()
        return Promoted(moved, max(job.run_at - now, timedelta(0)) if job and job.run_at else None)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        now = self._clock.now()
        expired = sorted((x for x in self._leases.values() if x.expires_at <= now), key=lambda x: x.expires_at)
        orphans: list[Orphan] = []
        for lease in expired[:limit]:
            del self._leases[lease.token]
            lease.token = new_token()
            self._leases[lease.token] = lease
            jobs = [(position, _claimed(job)) for position, job in lease.open()]
            orphans.append(Orphan(lease.token, jobs, lease.suspect, lease.worker, lease.cause))
            lease.worker, lease.expires_at, lease.cause = worker, now + ttl, "lease expired"
        return orphans

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        theirs = [lease for lease in self._leases.values() if lease.worker == worker]
        for lease in theirs:
            lease.expires_at, lease.cause = self._clock.now(), cause
        return len(theirs)

    async def retire(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        now = self._clock.now()

        def kept(job: _Job) -> timedelta:
            return keep.dead_in(job.queue) if job.state is JobState.DEAD else keep.done

        old = [n for n, job in self._jobs.items() if job.finished_at and job.finished_at <= now - kept(job)]
        for number in old[:limit]:
            del self._jobs[number]
        self._keys = {name: key for name, key in self._keys.items() if key.until > now}
        left = {split_id(job.id)[0].int for job in self._jobs.values()}
        self._batches = {batch: answer for batch, answer in self._batches.items() if batch in left}
        if progress is not None:
            progress(len(old[:limit]), len(old), "jobs")
        return Pruned(len(old[:limit]), more=len(old) > limit)

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        found = [self._jobs.get(id.int) for id in ids]
        return [self._view(job, history=True) if job else None for job in found]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        numbers = sorted((n for n in self._jobs if before is None or n < before.int), reverse=True)
        fitting = (job for n in numbers if _fits(job := self._jobs[n], where))
        page = [job for _, job in zip(range(limit + 1), fitting, strict=False)]
        jobs = [self._view(job, history=False) for job in page[:limit]]
        return Page(jobs, jobs[-1].id if jobs and len(page) > limit else None)

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
                    dead=counts[queue, JobState.DEAD],
                    done_total=self._totals[queue].done,
                    failed_total=self._totals[queue].failed,
                    enqueued_total=self._totals[queue].enqueued,
                    oldest_ready=now - oldest[queue] if queue in oldest else None,
                    paused=queue in self._paused,
                )
                for queue in sorted(self._totals.keys() | self._paused.keys())
            ]
        )

    async def workers(self) -> list[Presence]:
        since = self._clock.now() - _SEEN_WITHIN
        return [replace(presence, seen_at=at) for presence, at in self._workers.values() if at > since]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        job = self._jobs.get(id.int)
        if job is None or job.state not in {JobState.READY, JobState.SCHEDULED}:
            return None
        by, since = self._paused.get(job.queue, (None, None))
        lane = higher = 0
        if job.state is JobState.READY:
            own = job.new.lane
            ready = [x for x in self._jobs.values() if x.state is JobState.READY and x.queue == own.queue]
            lane = sum(x.new.lane == own and x.id < job.id for x in ready)
            higher = sum(x.new.lane.priority > own.priority for x in ready)
        return Ahead(
            lane=min(lane, limit),
            higher=min(higher, limit),
            limit=limit,
            suspect=job.suspect,
            paused_by=by,
            paused_since=since,
        )

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        return {id: self._cancel(self._jobs.get(id.int), reason) for id in dict.fromkeys(ids)}

    async def retry(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        movable = FINISHED | {JobState.SCHEDULED}
        moved = [job for id in ids if (job := self._jobs.get(id.int)) and job.state in movable]
        for job in moved:
            job.failures = job.crashes = 0
            job.suspect, job.note = False, None
            job.finished_at = job.result = job.result_until = None
            self._put(job, None)
        return frozenset(job.id for job in moved)

    async def delete(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        gone = {id for id in ids if (job := self._jobs.get(id.int)) and job.state is not JobState.RUNNING}
        for id in gone:
            del self._jobs[id.int]
        return frozenset(gone)

    async def pause(self, queue: str, *, by: str = "") -> None:
        self._paused.setdefault(queue, (by, self._clock.now()))

    async def resume(self, queue: str) -> None:
        self._paused.pop(queue, None)
        self._ring_bells(queue)

    async def records(self, kind: str) -> dict[str, Record]:
        return {name: record for (of, name), record in sorted(self._records.items()) if of == kind}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        found = self._records.get((kind, name))
        if (found and found.version) != expect:
            return None
        if value is None:
            self._records.pop((kind, name), None)
            return 0
        self._last_version += 1
        self._records[kind, name] = Record(self._last_version, value)
        return self._last_version

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        lease = self._leases.get(token)
        if lease is None or not 0 <= position < len(lease.jobs) or (job := lease.jobs[position]) is None:
            return False
        lease.jobs[position] = None
        self._end_if_empty(lease)
        job.lease = _Lease(fresh, lease.worker, lease.claimed_at, lease.expires_at, lease.suspect, [job], lease.cause)
        self._leases[fresh] = job.lease
        return True

    # ── how jobs move ───────────────────────────────────────────────────────
    def _put(self, job: _Job, due: Due) -> None:
        """Into its lane at its own place, or among the delayed."""
        now = self._clock.now()
        run_at = now + due if isinstance(due, timedelta) else due
        if run_at is not None and run_at > now:
            job.state, job.run_at = JobState.SCHEDULED, run_at
            heapq.heappush(self._delayed, (run_at, job.id.int))
            return
        job.state, job.run_at = JobState.READY, None
        lane = job.new.lane
        ring = self._ready.setdefault((lane.priority, lane.queue), _Ring())
        heapq.heappush(ring.lanes.setdefault((lane.tenant, lane.id), []), job.id.int)
        self._ring_bells(lane.queue)

    def _take(self, queues: Collection[str], *, only_if_alone: bool) -> _Job | None:
        """The next job by priority, then by turn; its lane goes to the end of the ring. None also before a suspect."""
        open_rings = [key for key in self._ready if key[1] in queues and key[1] not in self._paused]
        for key in sorted(open_rings, key=lambda key: (-key[0], self._ready[key].served)):
            ring = self._ready[key]
            while ring.lanes:
                name = next(iter(ring.lanes))
                lane = ring.lanes.pop(name)
                while lane and not self._waits(lane[0]):
                    heapq.heappop(lane)
                if not lane:
                    continue
                job = self._jobs[lane[0]]
                if job.suspect and only_if_alone:
                    ring.lanes = {name: lane, **ring.lanes}
                    return None
                heapq.heappop(lane)
                ring.lanes[name] = lane
                self._turn += 1
                ring.served = self._turn
                job.state = JobState.RUNNING
                return job
            del self._ready[key]
        return None

    def _waits(self, number: int) -> bool:
        job = self._jobs.get(number)
        return job is not None and job.state is JobState.READY

    def _earliest(self) -> _Job | None:
        """The scheduled job that is due first."""
        while self._delayed:
            run_at, number = self._delayed[0]
            job = self._jobs.get(number)
            if job is not None and job.state is JobState.SCHEDULED and job.run_at == run_at:
                return job
            heapq.heappop(self._delayed)
        return None

    def _end_if_empty(self, lease: _Lease) -> None:
        if not any(lease.jobs):
            del self._leases[lease.token]

    def _apply(self, job: _Job, settlement: Settlement) -> None:
        if settlement.failure is not None:
            job.history.append(settlement.failure)
            self._totals[job.queue].failed += 1
        job.failures = job.failures if settlement.failures is None else settlement.failures
        job.crashes = job.crashes if settlement.crashes is None else settlement.crashes
        job.lease = None
        if not isinstance(settlement, Again):
            self._finish(job, settlement.state, settlement.note)
            job.result = settlement.result
            if settlement.result_ttl is not None:
                job.result_until = self._clock.now() + settlement.result_ttl
        elif job.cancelling:
            self._finish(job, JobState.CANCELLED, None)
        else:
            job.suspect, job.note = settlement.suspect, settlement.note
            self._put(job, settlement.due)

    def _finish(self, job: _Job, state: JobState, note: str | None) -> None:
        if state is JobState.DONE:
            self._totals[job.queue].done += 1
        if state is JobState.CANCELLED and note is None:
            note = job.cancel_reason
        job.state, job.note, job.run_at, job.finished_at = state, note, None, self._clock.now()
        job.cancelling, job.cancel_reason = False, None

    def _cancel(self, job: _Job | None, reason: str | None) -> CancelAnswer:
        if job is None:
            return CancelAnswer.UNKNOWN
        if job.state in FINISHED:
            return CancelAnswer.FINISHED
        if job.state is JobState.RUNNING:
            job.cancelling, job.cancel_reason = True, reason
            return CancelAnswer.ASKED
        self._finish(job, JobState.CANCELLED, reason)
        return CancelAnswer.CANCELLED

    def _ring_bells(self, queue: str) -> None:
        for bell, queues in self._bells.items():
            if queue in queues:
                bell.set()

    def _view(self, job: _Job, *, history: bool) -> Job:
        expired = job.result is not None and job.result_until is not None and job.result_until <= self._clock.now()
        return Job(
            id=job.id,
            task=job.new.task,
            queue=job.queue,
            priority=job.new.lane.priority,
            tenant=job.new.lane.tenant,
            limits=job.new.lane.limits,
            state=job.state,
            attempt=job.attempt,
            failures=job.failures,
            crashes=job.crashes,
            enqueued_at=job.enqueued_at,
            payload=job.new.payload,
            options=job.new.options,
            run_at=job.run_at,
            note=job.note,
            worker=job.lease.worker if job.lease else None,
            claimed_at=job.lease.claimed_at if job.lease else None,
            cancelling=job.cancelling,
            finished_at=job.finished_at,
            result=None if expired else job.result,
            result_expired=expired,
            history=tuple(job.history) if history else (),
        )


def _claimed(job: _Job) -> Claimed:
    lane, (batch, ord) = job.new.lane, split_id(job.id)
    return Claimed(
        batch=batch,
        ord=ord,
        attempt=job.attempt,
        failures=job.failures,
        crashes=job.crashes,
        task=job.new.task,
        payload=job.new.payload,
        options=job.new.options,
        queue=lane.queue,
        priority=lane.priority,
        tenant=lane.tenant,
        enqueued_at=job.enqueued_at,
    )


def _fits(job: _Job, where: Filter) -> bool:
    texts = [job.new.task, job.note or "", *(text for f in job.history for text in (f.kind, f.message))]
    return (
        (not where.states or job.state in where.states)
        and where.queue in {None, job.queue}
        and where.task in {None, job.new.task}
        and where.tenant in {None, job.new.lane.tenant}
        and (where.since is None or job.enqueued_at >= where.since)
        and (where.until is None or job.enqueued_at < where.until)
        and (where.text is None or any(where.text in text for text in texts))
    )
