"""The memory store of a test: it can claim one chosen job, and it says when the next job becomes due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from headrace.client.remote import Remote
from headrace.model.gate import GateId, Predecessor, is_gate
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, job_id
from headrace.model.lease import Ask, Lease, Token
from headrace.model.outcome import Settlement
from headrace.model.records import Enqueued
from headrace.model.step import Step
from headrace.runtime.portal import Portal
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.store.memory.rows import LeaseRow
from headrace.testing.commits import after_commit


class TestStore(MemoryStore):
    """The memory store, with the looks and moves that only a test needs."""

    __test__ = False  # pytest collects classes by this name

    @property
    def changes(self) -> int:
        """Grows with every record and rule that is written."""
        return self._last_version

    @property
    def queues(self) -> set[str]:
        """Every queue that has had jobs. `stats` would count all jobs."""
        return set(self._totals)

    async def jobs(self) -> list[tuple[Job, NewJob]]:
        """Every job in the order of its enqueue call, as it is now and as it was enqueued."""
        now = self._clock.now()
        return [(job.view(now, history=True), job.new) for job in self._jobs.values()]

    async def ready(self, queues: Collection[str]) -> list[JobId]:
        """The ready jobs of these queues, the highest priority first."""
        jobs = [job for job in self._jobs.values() if job.state is JobState.READY and job.queue in queues]
        return [job.id for job in sorted(jobs, key=lambda job: (-job.new.lane.priority, job.id))]

    async def claim_one(self, id: JobId, ask: Ask) -> Lease | None:
        """Claim this job and no other. None: it is not ready, or a pause or a limit keeps it."""
        now, job = self._clock.now(), self._jobs.get(id.int)
        if job is None or job.state is not JobState.READY or job.queue not in ask.queues:
            return None
        lane = job.new.lane
        paused = self._pause("queue", lane.queue) or self._pause("tenant", lane.tenant)
        if paused or self._limits.blocked(lane, now):
            return None
        job.state = JobState.RUNNING  # The line skips a job that is not ready any more.
        self._limits.take(lane, now)
        job.lease = LeaseRow(ask.token, ask.worker, now, now + ask.ttl, job.suspect, [job])
        job.note = None
        job.attempt += 1
        self._leases[ask.token] = job.lease
        return Lease(ask.token, [job.claimed()], job.suspect)

    async def next_change(self, queues: Collection[str], open_now: Collection[str]) -> datetime | None:
        """When a job of these queues becomes due, or a limit or pause lets a ready job of an open queue start."""
        now = self._clock.now()
        times = [
            job.run_at
            for job in self._jobs.values()
            if job.state is JobState.SCHEDULED and job.run_at is not None and job.queue in queues
        ]
        for lane, _ in self._line.lanes():
            if lane.queue in open_now:
                pauses = (self._pause("queue", lane.queue), self._pause("tenant", lane.tenant))
                opens = [pause.until for pause in pauses if pause is not None]
                opens += [blocked.opens_at for blocked in self._limits.blocked(lane, now)]
                known = [at for at in opens if at is not None]
                if known and len(known) == len(opens):
                    times.append(max(known))
        return min((at for at in times if at > now), default=None)


def as_store(front: FrontStore) -> Store:
    """The stand-in has every verb of a store: those that it does not define are forwarded."""
    return cast("Store", front)


class FrontStore(Remote):
    """The test's store, for every event loop. A job with `tx=` is stored when that transaction is committed."""

    def __init__(self, portal: Portal, store: TestStore) -> None:
        super().__init__(portal, store)
        self._portal = portal
        self._test_store = store
        self.committed: Callable[[Sequence[JobId]], None] | None = None
        """Called after a commit with the jobs that it stored."""
        self._uncommitted: dict[UUID, Predecessor] = {}
        """What was enqueued in transactions, for jobs of the same one that follow it."""

    @property
    def one_writer(self) -> bool:
        return False

    def followed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        del tx
        return self._portal.run(lambda: self._followed(ids))

    async def afollowed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        del tx
        return await self._portal.answer_of(lambda: self._followed(ids))

    async def _followed(self, ids: Sequence[UUID]) -> list[Predecessor | None]:
        stored: dict[UUID, Predecessor] = {}
        for job in await self._test_store.get([JobId(id) for id in ids if not is_gate(id)]):
            if job is not None:
                stored[job.id] = Predecessor(job.tenant, job.options)
        for gate in await self._test_store.gates([GateId(id) for id in ids if is_gate(id)]):
            if gate is not None:
                stored[gate.id] = Predecessor(gate.tenant)
        return [stored.get(id) or self._uncommitted.get(id) for id in ids]

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        def store() -> None:
            answer = self._portal.run(lambda: self._test_store.enqueue(batch))
            if self.committed is not None:
                places = [ord for ord in range(len(batch.jobs)) if ord not in answer.existing]
                self.committed([job_id(batch.id, ord) for ord in places])

        for ord, job in enumerate(batch.jobs):
            self._uncommitted[job_id(batch.id, ord)] = Predecessor(job.lane.tenant, job.options)
        after_commit(tx, store)
        return Enqueued({})

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        return self.enqueue_in(tx, batch)

    def settle_in(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        del tx
        return self._portal.run(lambda: self._test_store.settle(token, settlements))

    async def asettle_in(
        self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> frozenset[int]:
        del tx
        return await self._portal.answer_of(lambda: self._test_store.settle(token, settlements))

    def add_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        del tx
        return self._portal.run(lambda: self._test_store.add_steps(token, steps))

    async def aadd_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        del tx
        return await self._portal.answer_of(lambda: self._test_store.add_steps(token, steps))
