"""The order of claims: priorities strictly, queues and tenants in turns, lanes of a tenant in turns, jobs of a lane by age."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from headrace.model.job import JobState
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY, Lane
from headrace.model.lease import LEASE_BYTES, MAX_LEASE, Ask, Band
from headrace.store.memory.limits import Limits
from headrace.store.memory.rows import JobRow

Find = Callable[[int], JobRow | None]


@dataclass(slots=True)
class WaitingLane:
    lane: Lane
    heap: list[int] = field(default_factory=list[int])
    """Ids as numbers. A job that is not READY any more is skipped when met, and never searched for."""


@dataclass(slots=True)
class Ring:
    """The tenants of one queue and priority that have jobs, each with its lanes; the first one's turn is next."""

    tenants: dict[str, dict[int, WaitingLane]] = field(default_factory=dict[str, dict[int, WaitingLane]])
    turn: tuple[str, int] | None = None
    """The turn that was begun, and how many jobs are left of it."""
    served: int = 0
    """When a job was last taken: queues of one priority take turns, too."""


class Line:
    """Everything that is ready."""

    def __init__(self, find: Find, limits: Limits, held_back: Callable[[str, str], datetime | bool | None]) -> None:
        """`held_back(kind, name)`: False, or until when it is paused (None: for good)."""
        self._find = find
        self._limits = limits
        self._held_back = held_back
        self._rings: dict[tuple[int, str], Ring] = {}
        self._clock = 0
        self.opens_at: datetime | None = None
        """When the first of what the last claim passed over will be free, as far as that is a matter of time."""

    def put(self, job: JobRow) -> None:
        lane = job.new.lane
        ring = self._rings.setdefault((lane.priority, lane.queue), Ring())
        lanes = ring.tenants.setdefault(lane.tenant, {})
        heapq.heappush(lanes.setdefault(lane.id, WaitingLane(lane)).heap, job.id.int)

    def take(self, ask: Ask, now: datetime) -> list[JobRow]:
        """The jobs of one claim; they are RUNNING from here on."""
        self.opens_at = None
        limit = min(ask.limit, MAX_LEASE)
        taken: list[JobRow] = []
        room = LEASE_BYTES
        rest = () if ask.only_bands else (Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, limit),)
        for band in (*ask.bands, *rest):
            share = min(limit, len(taken) + band.share)
            while room > 0 and len(taken) < share and (job := self._next(ask, band, now, alone=not taken)):
                job.state = JobState.RUNNING
                self._limits.take(job.new.lane, now)
                taken.append(job)
                room -= len(job.new.payload)
                if job.suspect:
                    return taken
        return taken

    def has_any(self, queues: Collection[str]) -> bool:
        """Whether one of these queues has a ready job."""
        return any(
            self._ready(number)
            for (_, queue), ring in self._rings.items()
            if queue in queues
            for lanes in ring.tenants.values()
            for waiting in lanes.values()
            for number in waiting.heap
        )

    def lanes(self) -> Iterator[tuple[Lane, list[JobRow]]]:
        """Every lane with its ready jobs, the oldest first."""
        for ring in self._rings.values():
            for lanes in ring.tenants.values():
                for waiting in lanes.values():
                    jobs = [job for number in sorted(set(waiting.heap)) if (job := self._ready(number))]
                    if jobs:
                        yield waiting.lane, jobs

    def _next(self, ask: Ask, band: Band, now: datetime, *, alone: bool) -> JobRow | None:
        """The next job by priority, then by turn. None also before a suspect that would have company."""
        queues = [q for q in ask.queues if not band.queues or q in band.queues]
        paused = [queue for queue in queues if self._is_held_back("queue", queue)]
        levels = [
            key
            for key in self._rings
            if band.lowest <= key[0] <= band.highest and key[1] in queues and key[1] not in paused
        ]
        for key in sorted(levels, key=lambda key: (-key[0], self._rings[key].served)):
            ring = self._rings[key]
            for tenant in list(ring.tenants):
                if ask.tenant not in {None, tenant} or self._is_held_back("tenant", tenant):
                    continue
                waiting = self._open_lane(ring, tenant, now)
                if waiting is None:
                    continue
                job = self._find(waiting.heap[0])
                assert job is not None
                if job.suspect and not alone:
                    return None
                heapq.heappop(waiting.heap)
                self._note_turn(ring, tenant, waiting, ask.weights.get(key[1], {}).get(tenant, 1))
                return job
            if not ring.tenants:
                del self._rings[key]
        return None

    def _open_lane(self, ring: Ring, tenant: str, now: datetime) -> WaitingLane | None:
        """The first lane of the tenant whose first job may run now; lanes and tenants without jobs are forgotten."""
        lanes = ring.tenants[tenant]
        for id, waiting in list(lanes.items()):
            while waiting.heap and not self._ready(waiting.heap[0]):
                heapq.heappop(waiting.heap)
            if not waiting.heap:
                del lanes[id]
                continue
            blocked = self._limits.blocked(waiting.lane, now)
            if not blocked:
                return waiting
            times = [block.opens_at for block in blocked]
            if None not in times:
                self._note_opening(max(at for at in times if at is not None))
        if not lanes:
            del ring.tenants[tenant]
        if ring.turn is not None and ring.turn[0] == tenant:
            ring.turn = None
        return None

    def _note_turn(self, ring: Ring, tenant: str, waiting: WaitingLane, weight: int) -> None:
        """The lane goes behind its tenant's others; the tenant behind the others when its turn is over."""
        lanes = ring.tenants[tenant]
        del lanes[waiting.lane.id]
        lanes[waiting.lane.id] = waiting
        left = (ring.turn[1] if ring.turn is not None and ring.turn[0] == tenant else weight) - 1
        ring.turn = (tenant, left) if left > 0 else None
        if ring.turn is None:
            ring.tenants[tenant] = ring.tenants.pop(tenant)
        self._clock += 1
        ring.served = self._clock

    def _is_held_back(self, kind: str, name: str) -> bool:
        until = self._held_back(kind, name)
        if isinstance(until, datetime):
            self._note_opening(until)
        return until is not False

    def _note_opening(self, at: datetime) -> None:
        self.opens_at = at if self.opens_at is None else min(at, self.opens_at)

    def _ready(self, number: int) -> JobRow | None:
        job = self._find(number)
        return job if job is not None and job.state is JobState.READY else None
