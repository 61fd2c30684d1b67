"""How much to claim, and from which queues, while threads or child processes are few and other slots are free.

The store does not know which kind of slot a job needs. The worker therefore learns it for each queue: from the tasks that are
declared for it, and from the jobs that came from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

import msgspec

from headrace.model.lease import Band
from headrace.webhooks.deliver import QUEUE
from headrace.worker.attempt import Attempt
from headrace.worker.state import WorkerState

ASYNC = "async"


class KindRoom(msgspec.Struct, frozen=True):
    """The slots of one kind."""

    size: int
    running: int
    waiting: int

    @property
    def free(self) -> int:
        return self.size - self.running - self.waiting

    @property
    def line(self) -> int:
        """How many jobs may wait in line, if they stand in one queue with jobs of other kinds."""
        return max(1, self.size // 2)


class ClaimScope:
    """Which queues the next claim names, and how many jobs it asks for."""

    def __init__(self, state: WorkerState) -> None:
        self._all = state.queues
        self._kinds: dict[str, set[str]] = {queue: set() for queue in state.queues}
        for task in state.tasks.values():
            if (known := state.known(task.name)) is not None and task.options.queue in self._kinds:
                self._kinds[task.options.queue].add(known.executor)
        # Deliveries of webhooks are rare and do not count.
        self.kinds = {kind for queue, kinds in self._kinds.items() if queue != QUEUE for kind in kinds}
        """Kinds of slots that the declared tasks of the served queues need."""
        self._share = 0.5
        """Which part of the claimed jobs needs a thread or a process, of late."""
        self.queues = state.queues
        """The queues of the next claim."""

    @property
    def narrowed(self) -> bool:
        """Some queues are left out until a thread or a process is free."""
        return self.queues is not self._all

    def size(self, concurrency: int, rooms: Mapping[str, int]) -> int:
        """Slots for which jobs are claimed: fewer, if no task could use the others."""
        if not self.kinds or ASYNC in self.kinds:
            return concurrency
        return min(concurrency, sum(rooms[kind] for kind in self.kinds))

    def saw(self, lines: Mapping[str, list[Attempt]]) -> None:
        """A lease arrived: its attempts by kind."""
        total = sum(map(len, lines.values()))
        if not total:
            return
        self._share += ((total - len(lines[ASYNC])) / total - self._share) * 0.3
        for kind, line in lines.items():
            if line:
                for attempt in (line[0], line[-1]):
                    self._kinds.setdefault(attempt.job.queue, set()).add(kind)

    def narrow(self, limit: int, ahead: int, rooms: Mapping[str, KindRoom]) -> int:
        """Choose the queues for the next claim. Returns how many jobs to ask for; `ahead`: how many may wait in line."""
        full = {kind for kind, room in rooms.items() if room.free + ahead <= 0}
        if full:
            # Where jobs of a full kind stand in one line with others, some are claimed with them. They wait here for a
            # moment, up to a number.
            crowded = {kind for kind in full if rooms[kind].waiting >= rooms[kind].line}
            open_ = tuple(queue for queue in self._all if self._is_open(self._kinds[queue], full, crowded))
            self.queues = open_ if len(open_) < len(self._all) else self._all
        else:
            self.queues = self._all
        if not self.queues:
            return 0
        if self._share <= 0.01:
            return limit
        allowance, bounded = 0, False
        for kind, room in rooms.items():
            claimed = [self._kinds[queue] for queue in self.queues if kind in self._kinds[queue]]
            mixed = any(len(kinds) > 1 for kinds in claimed)
            bounded = bounded or bool(claimed)
            allowance += max(0, room.free + ahead + room.line * mixed) if claimed else 0
        return min(limit, max(1, ceil(allowance / self._share))) if bounded else limit

    def _is_open(self, kinds: set[str], full: set[str], crowded: set[str]) -> bool:
        return not kinds or (bool(kinds - full) and not kinds & crowded)

    def bands(self, bands: Iterable[Band]) -> tuple[Band, ...]:
        """The bands of a claim, without the queues that are left out."""
        if not self.narrowed:
            return tuple(bands)
        kept: list[Band] = []
        for band in bands:
            queues = tuple(queue for queue in band.queues if queue in self.queues)
            if queues or not band.queues:
                kept.append(msgspec.structs.replace(band, queues=queues))
        return tuple(kept)
