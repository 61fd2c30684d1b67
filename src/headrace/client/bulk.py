"""Groups the jobs of a bulk call by lane, because a store keeps neighbouring jobs of one lane as one range."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from headrace.errors import ConfigError
from headrace.model.gate import Edge, GateId
from headrace.model.job import Batch, BatchId, JobId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.task.call import JobCall
from headrace.task.handle import Put

CHUNK = 1000
"""Jobs in one call of the store. A bulk enqueue makes one round trip for each such call."""
CALL_BYTES = 2_000_000
"""Bytes of payload in one call of the store. Larger calls cost a store twice the time per byte, and hold up other clients."""
FEW = 20
"""Jobs that tell whether those of a call are large, before the rest of them is made."""
WINDOW = 8 * CHUNK
"""Jobs of many lanes that wait for later jobs of their lanes."""
SLOW = 0.05
"""If a thousand jobs take longer than this many seconds to arrive, nothing is kept back."""

R = TypeVar("R")


def batch_of(jobs: list[NewJob], into: GateId | None = None) -> Batch:
    """The batch of one call. `into`: the group whose members its jobs are."""
    id = new_batch()
    if into is None or not jobs:
        return Batch(id, jobs)
    return Batch(id, jobs, edges=(Edge(job_id(id, 0), job_id(id, len(jobs) - 1), into),))


class Placed(NamedTuple):
    """Where the jobs of one call went: `job_id(batch, place)`, or the existing job with the same key or lock."""

    batch: BatchId
    existing: Mapping[int, JobId]
    ords: Sequence[int] | None = None
    """The place in the batch by place in the call. None: they are the same."""

    def id(self, place: int) -> JobId:
        return self.existing.get(place) or job_id(self.batch, place if self.ords is None else self.ords[place])

    def put(self, place: int) -> Put:
        return Put(self.id(place), place not in self.existing)


class BulkLoad(NamedTuple, Generic[R]):
    """The jobs of one call of the store."""

    places: Sequence[int]
    """The place of each job in the caller's order."""
    calls: list[JobCall[R]]

    @property
    def jobs(self) -> list[NewJob]:
        return [call.job for call in self.calls]


def gather(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[int] | None]:
    """Put the jobs of one lane side by side, in their order. Returns also where each went, by place.

    The order stays as it is, without places, if there is nothing to group or if keys or locks make the order matter.
    """
    first = jobs[0].lane if jobs else None
    if len(jobs) < 2 or all(job.lane is first for job in jobs) or _in_order(jobs):
        return list(jobs), None
    known: dict[int, list[int]] = {}
    lanes: dict[Lane, list[int]] = {}
    for place, job in enumerate(jobs):
        places = known.get(id(job.lane))
        if places is None:
            places = known[id(job.lane)] = lanes.setdefault(job.lane, [])
        places.append(place)
    # Ordered by tenant, because tenants take turns: jobs that are claimed together are then neighbours in the store.
    order = [place for lane in sorted(lanes, key=_tenant) for place in lanes[lane]]
    ords = [0] * len(jobs)
    for ord, place in enumerate(order):
        ords[place] = ord
    return [jobs[place] for place in order], ords


def _tenant(lane: Lane) -> str:
    return lane.tenant


def loads(calls: Iterable[JobCall[R]]) -> Iterator[BulkLoad[R]]:
    """Divides a stream of jobs into calls of the store, by their number and their bytes."""
    for load in _by_number(calls):
        lengths = [len(call.job.payload) for call in load.calls]
        if sum(lengths) <= CALL_BYTES:
            yield load
        else:
            yield from _by_bytes(load, lengths)


def _by_bytes(load: BulkLoad[R], lengths: list[int]) -> Iterator[BulkLoad[R]]:
    start = size = 0
    for at, length in enumerate(lengths):
        if size and size + length > CALL_BYTES:
            yield BulkLoad(load.places[start:at], load.calls[start:at])
            start, size = at, 0
        size += length
    yield BulkLoad(load.places[start:], load.calls[start:])


def _next(source: Iterator[JobCall[R]]) -> list[JobCall[R]]:
    """The jobs of the next call, at most CHUNK. A stream of large ones is not kept in memory beyond one call."""
    some = list(itertools.islice(source, FEW))
    check_calls(some)
    size = sum(len(call.job.payload) for call in some)
    if size * CHUNK <= CALL_BYTES * FEW:
        some += itertools.islice(source, CHUNK - FEW)
        return some
    while len(some) < CHUNK and size < CALL_BYTES and (more := list(itertools.islice(source, 1))):
        check_calls(more)
        some += more
        size += len(more[0].job.payload)
    return some


def _by_number(calls: Iterable[JobCall[R]]) -> Iterator[BulkLoad[R]]:
    """No job overtakes another job of its lane.

    A call with a thousand jobs of a thousand tenants makes a thousand ranges. If the stream looks at some thousand more
    jobs first, it can put the jobs of each tenant side by side, which makes a tenth of the ranges.
    """
    source = iter(calls)
    window = _Window[R]()
    start = 0
    while True:
        began = monotonic()
        some = _next(source)
        if not some:
            break
        check_calls(some)
        places = range(start, start + len(some))
        start = places.stop
        lane = some[0].job.lane
        if not window.held and all(call.job.lane is lane for call in some):
            yield BulkLoad(places, some)
        elif _in_order([call.job for call in some]):
            yield from window.leave(0)
            yield BulkLoad(places, some)
        else:
            window.add(places, some)
            # The first jobs go at once, so that workers can begin. The stream never keeps more jobs back than it has
            # sent, and no large ones.
            full = len(some) == CHUNK
            yield from window.leave(min(WINDOW, start // 2) if full and monotonic() - began < SLOW else 0)
    yield from window.leave(0)


def check_calls(calls: Iterable[JobCall[R]]) -> None:
    """A ConfigError for what is no `task.job(…)`, and for a job that has to be enqueued with those that it follows."""
    for call in calls:
        if not isinstance(call, JobCall) or call.links is not None:
            check_call(call, "enqueue_many")
            from headrace.task.links import check_alone

            check_alone(call, "enqueue_many")


def check_call(call: JobCall[R], verb: str) -> None:
    """A ConfigError for what is no `task.job(…)`."""
    if not isinstance(call, JobCall):
        raise ConfigError(f"{verb} takes task.job(…), not {call!r:.80}")


def _in_order(jobs: Sequence[NewJob]) -> bool:
    """Which of two jobs with the same key or lock comes first decides which one is made."""
    return any(job.key or job.unique for job in jobs)


class _Window(Generic[R]):
    """Jobs that are kept back, by lane. The lane that came first goes first."""

    def __init__(self) -> None:
        self.held = 0
        self._lanes: dict[Lane, list[tuple[int, JobCall[R]]]] = {}

    def add(self, places: range, calls: list[JobCall[R]]) -> None:
        known: dict[int, list[tuple[int, JobCall[R]]]] = {}
        for placed in zip(places, calls, strict=True):
            lane = placed[1].job.lane
            line = known.get(id(lane))
            if line is None:
                line = known[id(lane)] = self._lanes.setdefault(lane, [])
            line.append(placed)
        self.held += len(calls)

    def leave(self, stay: int) -> Iterator[BulkLoad[R]]:
        """Calls that one lane fills, and of the other lanes the jobs beyond the allowed number."""
        for lane in [lane for lane, line in self._lanes.items() if len(line) >= CHUNK]:
            line = self._lanes.pop(lane)
            whole = len(line) - len(line) % CHUNK
            for at in range(0, whole, CHUNK):
                yield self._load(line[at : at + CHUNK])
            if line[whole:]:
                self._lanes[lane] = line[whole:]
        while self.held > stay:
            yield self._load(self._first())

    def _first(self) -> list[tuple[int, JobCall[R]]]:
        """As many of the longest waiting lanes as fill one call."""
        taken: list[tuple[int, JobCall[R]]] = []
        gone: list[Lane] = []
        for lane, line in self._lanes.items():
            room = CHUNK - len(taken)
            taken += line[:room]
            if len(line) > room:
                del line[:room]
                break
            gone.append(lane)
        for lane in gone:
            del self._lanes[lane]
        return taken

    def _load(self, taken: list[tuple[int, JobCall[R]]]) -> BulkLoad[R]:
        self.held -= len(taken)
        return BulkLoad([place for place, _ in taken], [call for _, call in taken])
