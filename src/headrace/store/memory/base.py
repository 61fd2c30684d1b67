"""What the parts of the memory store share: the dictionaries, and how jobs move between them."""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from datetime import datetime, timedelta
from uuid import UUID

from headrace.model.clock import Clock, SystemClock
from headrace.model.job import Due, JobId, JobState
from headrace.model.lease import Presence, Token, WorkerId
from headrace.model.outcome import Again, Settlement
from headrace.model.records import Enqueued, Pause, Record
from headrace.model.rollup import Rollup, RollupKey
from headrace.store.due import DueHints, hint_of
from headrace.store.memory.limits import Limits
from headrace.store.memory.line import Line
from headrace.store.memory.rows import JobRow, KeyRow, LeaseRow, Totals

_TIMED = frozenset({JobState.SCHEDULED, JobState.BLOCKED})


class Base:
    """Nothing here is a verb of the contract but the clock."""

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
        self._names: dict[UUID, str] = {}
        self._upkeep: dict[tuple[str, WorkerId], datetime] = {}
        """(group, worker) → until when it has a place."""
        """Of workers that were ever there."""
        self._bells: dict[asyncio.Event, frozenset[str]] = {}
        self._due_hints = DueHints()
        self._records: dict[tuple[str, str], Record] = {}
        self._last_version: int = 0
        self._rollups: dict[RollupKey, Rollup] = {}
        self._folds: int = 0

    async def now(self) -> datetime:
        return self._clock.now()

    def _put(self, job: JobRow, due: Due) -> None:
        """Into its lane at its own place, or among the delayed."""
        now = self._clock.now()
        run_at = now + due if isinstance(due, timedelta) else due
        if run_at is not None and run_at > now:
            job.state, job.run_at = JobState.SCHEDULED, run_at
            heapq.heappush(self._delayed, (run_at, job.id.int))
            if (hint := hint_of(due)) is not None:
                self._due_hints.hint(hint)
            return
        job.state, job.run_at = JobState.READY, None
        self._line.put(job)
        self._ring_bells(job.queue)

    def _earliest(self) -> JobRow | None:
        """The scheduled job that is due first."""
        while self._delayed:
            run_at, number = self._delayed[0]
            job = self._jobs.get(number)
            if job is not None and job.state in _TIMED and job.run_at == run_at:
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
        if job.lease is not None and (job.cancelling or not isinstance(settlement, Again)):
            job.ended_by, job.ended_from = job.lease.worker, job.lease.claimed_at
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
            self._again(job, settlement)

    def _again(self, job: JobRow, settlement: Again) -> None:
        self._put(job, settlement.due)

    def _finish(self, job: JobRow, state: JobState, note: str | None) -> None:
        if state is JobState.DONE:
            self._totals[job.queue].done += 1
        if state is JobState.CANCELLED and note is None:
            note = job.cancel_reason
        job.state, job.note, job.run_at, job.finished_at = state, note, None, self._clock.now()
        job.cancelling, job.cancel_reason = False, None

    def _pause(self, kind: str, name: str) -> Pause | None:
        pause = self._pauses.get((kind, name))
        return None if pause is None or (pause.until is not None and pause.until <= self._clock.now()) else pause

    def _held_back(self, kind: str, name: str) -> datetime | bool | None:
        pause = self._pause(kind, name)
        return False if pause is None else pause.until

    def _ring_bells(self, queue: str | None) -> None:
        """Wake workers that wait for this queue. None: for any queue."""
        for bell, queues in self._bells.items():
            if queue is None or queue in queues:
                bell.set()
