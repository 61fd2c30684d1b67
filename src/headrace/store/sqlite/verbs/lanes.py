"""LANES: what waits, lane by lane. A queue with many lanes shows others at each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.model.lane import HIGHEST_PRIORITY, MAX_LANES, LaneView
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.fairness.turn_state import LOWEST_LANE
from headrace.store.sqlite.rows import moment

_SQL = load("lanes")
_COUNTED = 10_000
"""Where the count of a lane's jobs ends; a range holds a job or more."""
_RANGES = 10_000
"""Ranges that one step counts, and with its last lane no more than twice as many."""
_LOOK = 50
"""What it costs to find a lane, in ranges."""

Spot = tuple[int, str, int]
"""Priority, tenant, lane."""
_BEFORE_ALL: Spot = (HIGHEST_PRIORITY + 1, "", LOWEST_LANE)


class Glance:
    """Where a store object's last look at a queue ended, if it did not see every lane."""

    def __init__(self) -> None:
        self.last: dict[str, Spot] = {}


class Walk:
    """One call of `lanes`, step by step: a step counts about as many ranges as it may, and other reads run in between."""

    def __init__(self, queues: Sequence[str], limit: int, glance: Glance) -> None:
        self._queues = deque(dict.fromkeys(queues) if limit > 0 else ())
        self._limit = min(limit, MAX_LANES)
        self._glance = glance
        self._views: list[LaneView] = []
        self._seen = 0
        self._start: Spot | None = None
        self._at = _BEFORE_ALL
        self._wrapped = False

    def step(self, tx: Tx) -> list[LaneView] | None:
        """The lanes; None: there are more to look at."""
        left = _RANGES
        while self._queues and left > 0:
            queue = self._queues[0]
            if self._start is None:
                self._start = self._at = self._glance.last.pop(queue, _BEFORE_ALL)
                self._wrapped = self._start == _BEFORE_ALL
            spot = self._next(tx, queue)
            left -= _LOOK
            if spot is None:
                self._turn_to_next()
                continue
            ranges, view = _view(tx, queue, *spot)
            left -= ranges
            self._views.append(view)
            self._at = spot
            self._seen += 1
            if self._seen == self._limit:
                self._glance.last[queue] = spot
                self._turn_to_next()
        return None if self._queues else self._views

    def _next(self, tx: Tx, queue: str) -> Spot | None:
        row: Spot | None = tx.cur.execute(_SQL["after"], (queue, *self._at)).fetchone()
        if row is None and not self._wrapped:
            self._wrapped = True
            row = tx.cur.execute(_SQL["after"], (queue, *_BEFORE_ALL)).fetchone()
        start = self._start
        if row is None or start is None or start == _BEFORE_ALL or not self._wrapped:
            return row
        return row if _order(row) <= _order(start) else None

    def _turn_to_next(self) -> None:
        self._queues.popleft()
        self._start, self._seen = None, 0


def _order(spot: Spot) -> Spot:
    return -spot[0], spot[1], spot[2]


def _view(tx: Tx, queue: str, priority: int, tenant: str, lane: int) -> tuple[int, LaneView]:
    """A lane, and how many ranges were counted for it."""
    ranges, jobs, lo = tx.cur.execute(_SQL["jobs"], (queue, priority, tenant, lane, _COUNTED)).fetchone()
    (enqueued_at,) = tx.cur.execute(_SQL["enqueued_at"], (lo >> 16,)).fetchone()
    return ranges, LaneView(
        queue=queue, priority=priority, tenant=tenant, id=lane, jobs=min(jobs, _COUNTED), oldest=moment(enqueued_at)
    )
