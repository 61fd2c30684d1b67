"""MemoryStore: every verb of the contract on dictionaries."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace as changed
from datetime import datetime, timedelta

from msgspec.structs import replace

from headrace.clock import Clock, SystemClock
from headrace.errors import IdempotencyConflict
from headrace.job import FINISHED, Batch, Due, Job, JobId, JobState, NewJob, job_id, split_id
from headrace.lane import Ahead, Blocked, LaneView
from headrace.lease import MAX_LOG, Ask, Lease, Orphan, Presence, Pulse, Report, Stop, Token, WorkerId, new_token
from headrace.outcome import Again, Settlement
from headrace.store.contract import (
    CancelAnswer,
    Ending,
    Enqueued,
    Filter,
    Finding,
    LimitRule,
    Page,
    Pause,
    PauseKind,
    Progress,
    Promoted,
    Pruned,
    QueueStats,
    Record,
    Retention,
    Stats,
    stand_ins,
)
from headrace.store.memory.limits import Limits, uses
from headrace.store.memory.line import Line
from headrace.store.memory.rows import JobRow, KeyRow, LeaseRow, Totals

_SEEN_WITHIN = timedelta(minutes=1)
_COUNTED = 10_000
"""Where the count of a lane's jobs ends."""


class MemoryStore:
    """Everything in dictionaries; gone with the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: dict[int, JobRow] = {}
        self._batches: dict[int, Enqueued] = {}
        self._keys: dict[tuple[str, str], KeyRow] = {}
        self._locks: dict[tuple[str, str], JobId] = {}
        self._limits = Limits()
        self._line = Line(self._jobs.get, self._limits, self._held_back)
        self._delayed: list[tuple[datetime, int]] = []
        self._leases: dict[Token, LeaseRow] = {}
        self._totals: defaultdict[str, Totals] = defaultdict(Totals)
        self._pauses: dict[tuple[str, str], Pause] = {}
        self._workers: dict[WorkerId, tuple[Presence, datetime]] = {}
        self._bells: dict[asyncio.Event, frozenset[str]] = {}
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
        keys, existing = self._meet_keys(batch, now)
        locks, replaced = self._meet_locks(batch, now, existing)
        # A job that met a lock is not stored, so its key is not made, and who met the key inside the batch met the holder.
        refused = {job_id(batch.id, ord): id for ord, id in existing.items()}
        existing = {ord: refused.get(id, id) for ord, id in existing.items()}
        self._keys.update({name: key for name, key in keys.items() if key.job not in refused})
        for holder in replaced:
            self._finish(holder, JobState.CANCELLED, "replaced")
        for ord, new in enumerate(batch.jobs):
            if ord in existing:
                continue
            job = JobRow(job_id(batch.id, ord), new, now)
            self._jobs[job.id.int] = job
            self._totals[job.queue].enqueued += 1
            self._put(job, new.due)
        self._locks.update(locks)
        answer = Enqueued(existing)
        if len(existing) < len(batch.jobs):
            self._batches[batch.id.int] = answer
        return answer

    def _meet_keys(self, batch: Batch, now: datetime) -> tuple[dict[tuple[str, str], KeyRow], dict[int, JobId]]:
        """The keys that this batch makes, and the jobs that others have made."""
        made: dict[tuple[str, str], KeyRow] = {}
        existing: dict[int, JobId] = {}
        for ord, new in enumerate(batch.jobs):
            if new.key is None:
                continue
            name = (new.task, new.key.name)
            known = made.get(name) or self._keys.get(name)
            if known is None or known.until <= now:
                made[name] = KeyRow(job_id(batch.id, ord), new.key.digest, now + new.key.ttl)
            elif known.digest == new.key.digest:
                existing[ord] = known.job
            else:
                raise IdempotencyConflict(new.task, new.key.name, known.job)
        return made, existing

    def _meet_locks(
        self, batch: Batch, now: datetime, existing: dict[int, JobId]
    ) -> tuple[dict[tuple[str, str], JobId], list[JobRow]]:
        """The unique locks that this batch takes, and the waiting holders it replaces; adds the others to `existing`."""
        others = stand_ins(batch, existing)
        taken: dict[tuple[str, str], JobId] = {}
        replaced: list[JobRow] = []
        for ord, new in enumerate(batch.jobs):
            if new.unique is None or ord in existing or ord in others:
                continue
            holder = self._holder(new, now)
            if holder is not None and not new.unique.replace:
                existing[ord] = holder.id
                continue
            if holder is not None and holder.state in {JobState.READY, JobState.SCHEDULED}:
                replaced.append(holder)
            taken[new.task, new.unique.name] = job_id(batch.id, ord)
        for ord, other in others.items():
            existing[ord] = existing.get(other, job_id(batch.id, other))
        return taken, replaced

    def _holder(self, new: NewJob, now: datetime) -> JobRow | None:
        """The job that holds the new one's unique lock right now."""
        assert new.unique is not None
        id = self._locks.get((new.task, new.unique.name))
        holder = self._jobs.get(id.int) if id is not None else None
        if holder is None or holder.state not in new.unique.states:
            return None
        within = new.unique.within
        return holder if within is None or holder.enqueued_at + within > now else None

    async def claim(self, ask: Ask) -> Lease | None:
        now = self._clock.now()
        taken = self._line.take(ask, now)
        if not taken:
            return None
        lease = LeaseRow(ask.token, ask.worker, now, now + ask.ttl, taken[0].suspect, list(taken))
        self._leases[ask.token] = lease
        for job in taken:
            job.lease, job.note = lease, None
            job.attempt += 1
        return Lease(ask.token, [job.claimed() for job in taken], lease.suspect)

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

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        lease = self._leases.get(token)
        refused: set[int] = set()
        for position, report in reports:
            job = lease.at(position) if lease is not None else None
            if job is None:
                refused.add(position)
                continue
            job.progress = job.progress if report.progress is None else report.progress
            job.doing = job.doing if report.note is None else report.note
            job.log = [*job.log, *report.lines][-MAX_LOG:]
        return frozenset(refused)

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        bell = asyncio.Event()
        self._bells[bell] = frozenset(queues)
        opens = self._line.opens_at
        until_open = None if opens is None else (opens - self._clock.now()).total_seconds()
        if until_open is not None:
            asyncio.get_running_loop().call_later(max(until_open, 0.0), bell.set)
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
            jobs = [(position, job.claimed()) for position, job in lease.open()]
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

        def kept(job: JobRow) -> timedelta:
            return keep.dead_in(job.queue) if job.state is JobState.DEAD else keep.done

        old = [n for n, job in self._jobs.items() if job.finished_at and job.finished_at <= now - kept(job)]
        for number in old[:limit]:
            del self._jobs[number]
        self._keys = {name: key for name, key in self._keys.items() if key.until > now}
        self._locks = {name: id for name, id in self._locks.items() if id.int in self._jobs}
        left = {split_id(job.id)[0].int for job in self._jobs.values()}
        self._batches = {batch: answer for batch, answer in self._batches.items() if batch in left}
        if progress is not None:
            progress(len(old[:limit]), len(old), "jobs")
        return Pruned(len(old[:limit]), more=len(old) > limit)

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        found = [self._jobs.get(id.int) for id in ids]
        return [job.view(self._clock.now(), history=True) if job else None for job in found]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        numbers = sorted((n for n in self._jobs if before is None or n < before.int), reverse=True)
        fitting = (job for n in numbers if (job := self._jobs[n]).fits(where))
        page = [job for _, job in zip(range(limit + 1), fitting, strict=False)]
        jobs = [job.view(self._clock.now(), history=False) for job in page[:limit]]
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
        found = [
            Ending(job.id, job.state, job.finished_at, job.queue, job.new.task, job.new.lane.tenant)
            for job in self._jobs.values()
            if job.finished_at is not None and job.finished_at >= since
        ]
        return sorted(found, key=lambda ending: (ending.at, ending.id))[:limit]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        found: list[LaneView] = []
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
                found.append(view)
        return found

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
                replace(each, by=self._users(each.key)) if each.concurrency is not None else each
                for each in self._limits.blocked(own, self._clock.now())
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

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        return {id: self._cancel(self._jobs.get(id.int), reason) for id in dict.fromkeys(ids)}

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        movable = FINISHED | {JobState.SCHEDULED} if afresh else {JobState.SCHEDULED}
        moved = [job for id in ids if (job := self._jobs.get(id.int)) and job.state in movable]
        for job in moved:
            if afresh:
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

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        before = self._pause(kind, name)
        made = Pause(kind, name, by, self._clock.now(), until)
        self._pauses[kind, name] = changed(before, until=until) if before is not None else made

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        self._pauses.pop((kind, name), None)
        self._ring_bells(name if kind == "queue" else None)

    async def pauses(self) -> list[Pause]:
        found = [self._pause(kind, name) for kind, name in sorted(self._pauses)]
        return [pause for pause in found if pause is not None]

    def _pause(self, kind: str, name: str) -> Pause | None:
        found = self._pauses.get((kind, name))
        return None if found is None or (found.until is not None and found.until <= self._clock.now()) else found

    def _held_back(self, kind: str, name: str) -> datetime | bool | None:
        found = self._pause(kind, name)
        return False if found is None else found.until

    async def limits(self) -> dict[str, LimitRule]:
        return dict(sorted(self._limits.rules.items()))

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        found = self._limits.rules.get(name)
        if (found and found.version) != expect:
            return None
        self._ring_bells(None)
        if rule is None:
            self._limits.rules.pop(name, None)
            return 0
        self._last_version += 1
        self._limits.rules[name] = changed(rule, version=self._last_version)
        return self._last_version

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
        if lease is None or (job := lease.at(position)) is None:
            return False
        lease.jobs[position] = None
        self._end_if_empty(lease)
        job.lease = LeaseRow(fresh, lease.worker, lease.claimed_at, lease.expires_at, lease.suspect, [job], lease.cause)
        self._leases[fresh] = job.lease
        return True

    # ── how jobs move ───────────────────────────────────────────────────────
    def _put(self, job: JobRow, due: Due) -> None:
        """Into its lane at its own place, or among the delayed."""
        now = self._clock.now()
        run_at = now + due if isinstance(due, timedelta) else due
        if run_at is not None and run_at > now:
            job.state, job.run_at = JobState.SCHEDULED, run_at
            heapq.heappush(self._delayed, (run_at, job.id.int))
            return
        job.state, job.run_at = JobState.READY, None
        self._line.put(job)
        self._ring_bells(job.queue)

    def _earliest(self) -> JobRow | None:
        """The scheduled job that is due first."""
        while self._delayed:
            run_at, number = self._delayed[0]
            job = self._jobs.get(number)
            if job is not None and job.state is JobState.SCHEDULED and job.run_at == run_at:
                return job
            heapq.heappop(self._delayed)
        return None

    def _end_if_empty(self, lease: LeaseRow) -> None:
        if not any(lease.jobs):
            del self._leases[lease.token]

    def _apply(self, job: JobRow, settlement: Settlement) -> None:
        if settlement.failure is not None:
            job.history.append(settlement.failure)
            self._totals[job.queue].failed += 1
        job.failures = job.failures if settlement.failures is None else settlement.failures
        job.crashes = job.crashes if settlement.crashes is None else settlement.crashes
        job.lease = None
        if job.new.lane.limits:
            self._limits.give_back(job.new.lane)
            self._ring_bells(None)
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

    def _finish(self, job: JobRow, state: JobState, note: str | None) -> None:
        if state is JobState.DONE:
            self._totals[job.queue].done += 1
        if state is JobState.CANCELLED and note is None:
            note = job.cancel_reason
        job.state, job.note, job.run_at, job.finished_at = state, note, None, self._clock.now()
        job.cancelling, job.cancel_reason = False, None

    def _cancel(self, job: JobRow | None, reason: str | None) -> CancelAnswer:
        if job is None:
            return CancelAnswer.UNKNOWN
        if job.state in FINISHED:
            return CancelAnswer.FINISHED
        if job.state is JobState.RUNNING:
            job.cancelling, job.cancel_reason = True, reason
            return CancelAnswer.ASKED
        self._finish(job, JobState.CANCELLED, reason)
        return CancelAnswer.CANCELLED

    def _ring_bells(self, queue: str | None) -> None:
        """Wake who waits for this queue; None: for any."""
        for bell, queues in self._bells.items():
            if queue is None or queue in queues:
                bell.set()
