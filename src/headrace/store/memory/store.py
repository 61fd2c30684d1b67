"""MemoryStore: every verb of the contract on dictionaries; here the life of a job, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from headrace.errors import IdempotencyConflict
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, split_id
from headrace.model.lease import (
    MAX_LOG,
    ORDERS,
    UPKEEP_PLACES,
    Ask,
    Lease,
    Orphan,
    Presence,
    Pulse,
    Report,
    Stop,
    Token,
    WorkerId,
    new_token,
)
from headrace.model.outcome import Settlement
from headrace.model.records import Enqueued, Finding, Progress, Promoted, Pruned, Retention
from headrace.store.batches import stand_ins
from headrace.store.due import AT_ONCE
from headrace.store.memory.gates import Gating
from headrace.store.memory.history import Remembering
from headrace.store.memory.journal import Journaling
from headrace.store.memory.looks import Looking
from headrace.store.memory.moves import Operating
from headrace.store.memory.rows import JobRow, KeyRow, LeaseRow


class MemoryStore(Journaling, Gating, Looking, Operating, Remembering):
    """Everything in dictionaries; gone with the process."""

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

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        if (before := self._batches.get(batch.id.int)) is not None:
            return before
        self._refuse_over(batch)
        now = self._clock.now()
        keys, existing = self._meet_keys(batch, now)
        locks, replaced = self._meet_locks(batch, now, existing)
        # A job that met a lock is not stored, so its key is not made. A job of the batch that met the key has met the holder.
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
        self._locks.update(locks)
        self._link(batch, existing)
        answer = Enqueued(existing)
        if len(existing) < len(batch.jobs):
            self._batches[batch.id.int] = answer
        return answer

    def _meet_keys(self, batch: Batch, now: datetime) -> tuple[dict[tuple[str, str], KeyRow], dict[int, JobId]]:
        """The keys that this batch makes, and the jobs that others have made."""
        new_keys: dict[tuple[str, str], KeyRow] = {}
        existing: dict[int, JobId] = {}
        for ord, new in enumerate(batch.jobs):
            if new.key is None:
                continue
            name = (new.task, new.key.name)
            known = new_keys.get(name) or self._keys.get(name)
            if known is None or known.until <= now:
                new_keys[name] = KeyRow(job_id(batch.id, ord), new.key.digest, now + new.key.ttl)
            elif known.digest == new.key.digest:
                existing[ord] = known.job
            else:
                raise IdempotencyConflict(new.task, new.key.name, known.job)
        return new_keys, existing

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
            if holder is not None and holder.state in {JobState.READY, JobState.SCHEDULED, JobState.BLOCKED}:
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

    def blocking(self) -> None:
        """Sync code reaches this store only through its event loop."""

    async def claim(self, ask: Ask) -> Lease | None:
        now = self._clock.now()
        if (held := self._leases.get(ask.token)) is not None:
            return Lease(ask.token, [job.claimed() for _, job in held.open()], held.suspect)
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
            self._workers[presence.id] = replace(presence, upkeep=None), now
            self._names[presence.id] = presence.name
        alive = [self._leases[token] for token in dict.fromkeys(tokens) if token in self._leases]
        for lease in alive:
            lease.expires_at = now + ttl
        stops = [Stop(lease.token, position) for lease in alive for position, job in lease.open() if job.cancelling]
        upkeep = presence is not None and self._takes_upkeep(presence, ttl)
        order = None if presence is None else self._records.get((ORDERS, str(presence.id)))
        lost = frozenset(tokens) - self._leases.keys()
        ready = self._line.has_any(presence.queues) if presence is not None and upkeep else None
        return Pulse(lost, tuple(stops), upkeep, now, b"" if order is None else order.value, ready)

    def _takes_upkeep(self, presence: Presence, ttl: timedelta) -> bool:
        if presence.upkeep is None:
            return False
        now = self._clock.now()
        self._upkeep = {place: until for place, until in self._upkeep.items() if until > now}
        taken = [worker for group, worker in self._upkeep if group == presence.upkeep]
        if presence.id not in taken and len(taken) >= UPKEEP_PLACES:
            return False
        self._upkeep[presence.upkeep, presence.id] = now + ttl
        return True

    def _frees_upkeep(self, worker: WorkerId) -> None:
        self._upkeep = {place: until for place, until in self._upkeep.items() if place[1] != worker}

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

    @property
    def hears(self) -> bool:
        """Always: all its users are in this process."""
        return True

    async def wait_due(self, timeout: float) -> timedelta | None:
        return await self._due_hints.wait(timeout)

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        now = self._clock.now()
        self._due_hints.asking()
        moved = 0
        while moved < limit and (job := self._earliest()) and job.run_at is not None and job.run_at <= now:
            self._wake(job)
            moved += 1
        job = self._earliest()
        next_due = max(job.run_at - now, timedelta(0)) if job and job.run_at else None
        first = min((lease.expires_at for lease in self._leases.values()), default=None)
        next_expiry = None if first is None else max(first - now, timedelta(0))
        promoted = Promoted(moved, next_due, expired=next_expiry == timedelta(0), next_expiry=next_expiry)
        self._due_hints.answered(promoted.next)
        return promoted

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
            self._due_hints.hint(AT_ONCE)
        self._frees_upkeep(worker)
        return len(theirs)

    async def retire(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)
        self._frees_upkeep(worker)

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        now = self._clock.now()
        self._prune_gates(keep)
        old = [
            number
            for number, job in self._jobs.items()
            if job.state is not JobState.DEAD and job.finished_at and job.finished_at <= now - keep.done
            if not self._counts(number)
        ]
        for number in old[:limit]:
            self._forget(number)
        for job in self._jobs.values():
            if job.result and job.result_until is not None and job.result_until <= now:
                job.result = b""
        self._keys = {name: key for name, key in self._keys.items() if key.until > now}
        self._locks = {name: id for name, id in self._locks.items() if id.int in self._jobs}
        left = {split_id(job.id)[0].int for job in self._jobs.values()}
        self._batches = {batch: answer for batch, answer in self._batches.items() if batch in left}
        if progress is not None:
            progress(len(old[:limit]), len(old), "jobs")
        return Pruned(len(old[:limit]), more=len(old) > limit)

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        now = self._clock.now()
        dead = [job for job in self._jobs.values() if job.state is JobState.DEAD]
        return [job.id for job in dead if job.finished_at and job.finished_at <= now - keep.dead_in(job.queue)][:limit]

    # ── leases, the rare verb ───────────────────────────────────────────────
    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        lease = self._leases.get(token)
        if lease is None or (job := lease.at(position)) is None:
            return False
        lease.jobs[position] = None
        self._end_if_empty(lease)
        job.lease = LeaseRow(fresh, lease.worker, lease.claimed_at, lease.expires_at, lease.suspect, [job], lease.cause)
        self._leases[fresh] = job.lease
        return True
