"""Jobs of many lanes on their way into a store: those of one lane go side by side, because they wait there as one range."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from headrace.errors import ConfigError
from headrace.model.job import NewJob
from headrace.model.lane import Lane
from headrace.task.task import JobCall

CHUNK = 1000
"""Jobs in one call of the store: bulk enqueue is one round trip per so many."""
WINDOW = 8 * CHUNK
"""Jobs of many lanes that are kept back, so that those that come later can go with them."""
SLOW = 0.05
"""Seconds that a thousand jobs may take to come; if it is more, nothing is kept back."""

R = TypeVar("R")


class BulkLoad(NamedTuple, Generic[R]):
    """What goes into the store with one call."""

    places: Sequence[int]
    """Of each job in the order of those who want them."""
    calls: list[JobCall[R]]

    @property
    def jobs(self) -> list[NewJob]:
        return [call.job for call in self.calls]


def gather(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[int] | None]:
    """Jobs of one lane side by side, in their order; and where each went, by place.

    Left as they are, without places, where there is nothing to gather, or where keys or locks make their order count.
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
    # By tenant, as they take turns: what is claimed together then lies side by side in the store.
    order = [place for lane in sorted(lanes, key=_tenant) for place in lanes[lane]]
    ords = [0] * len(jobs)
    for ord, place in enumerate(order):
        ords[place] = ord
    return [jobs[place] for place in order], ords


def _tenant(lane: Lane) -> str:
    return lane.tenant


def loads(calls: Iterable[JobCall[R]]) -> Iterator[BulkLoad[R]]:
    """A stream of jobs in calls of the store, none of which overtakes another job of its lane.

    A call of a thousand jobs of a thousand tenants is a thousand ranges. Some thousand more jobs seen together, the same
    tenants' jobs go side by side, and it is a tenth of that.
    """
    source = iter(calls)
    window = _Window[R]()
    start = 0
    while True:
        began = monotonic()
        some = list(itertools.islice(source, CHUNK))
        if not some:
            break
        _check(some)
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
            # The first ones go at once, for workers to begin with; and at no time is more kept back than has gone.
            yield from window.leave(min(WINDOW, start // 2) if monotonic() - began < SLOW else 0)
    yield from window.leave(0)


def _check(calls: list[JobCall[R]]) -> None:
    for call in calls:
        if not isinstance(call, JobCall):
            raise ConfigError(f"enqueue_many takes task.job(…), not {call!r:.80}")


def _in_order(jobs: Sequence[NewJob]) -> bool:
    """Which of two jobs with the same key or lock comes first decides which one is made."""
    return any(job.key or job.unique for job in jobs)


class _Window(Generic[R]):
    """Jobs that are kept back, by lane; whichever lane came first goes first."""

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
        """Whole calls of one lane, and of the others what is more than may stay."""
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
        """Of the lanes that have waited longest, as many as make a call."""
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
