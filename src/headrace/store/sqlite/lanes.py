"""LANES: what waits, lane by lane; where there are many, others each time."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.lane import HIGHEST_PRIORITY, LaneView
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.rows import moment
from headrace.store.sqlite.statements import load
from headrace.store.sqlite.turns import LOWEST_LANE

_SQL = load("lanes")
_COUNTED = 10_000
"""Where the count of a lane's jobs ends; a range holds a job or more."""

Spot = tuple[int, str, int]
"""Priority, tenant, lane."""
_BEFORE_ALL: Spot = (HIGHEST_PRIORITY + 1, "", LOWEST_LANE)


class Glance:
    """Where a store object's last look at a queue ended, if it did not see every lane."""

    def __init__(self) -> None:
        self.last: dict[str, Spot] = {}


def lanes(tx: Tx, queues: Sequence[str], limit: int, glance: Glance) -> list[LaneView]:
    return [_view(tx, queue, *spot) for queue in dict.fromkeys(queues) for spot in _some(tx, queue, limit, glance)]


def _some(tx: Tx, queue: str, limit: int, glance: Glance) -> list[Spot]:
    start = at = glance.last.pop(queue, _BEFORE_ALL)
    found: list[Spot] = []
    wrapped = start == _BEFORE_ALL
    while len(found) < limit:
        row = tx.cur.execute(_SQL["after"], (queue, *at)).fetchone()
        if row is None and not wrapped:
            wrapped, at = True, _BEFORE_ALL
            continue
        if row is None or (wrapped and start != _BEFORE_ALL and _order(row) > _order(start)):
            return found
        found.append(row)
        at = row
    glance.last[queue] = at
    return found


def _order(spot: Spot) -> Spot:
    return -spot[0], spot[1], spot[2]


def _view(tx: Tx, queue: str, priority: int, tenant: str, lane: int) -> LaneView:
    jobs, lo = tx.cur.execute(_SQL["jobs"], (queue, priority, tenant, lane, _COUNTED)).fetchone()
    (enqueued_at,) = tx.cur.execute(_SQL["enqueued_at"], (lo >> 16,)).fetchone()
    return LaneView(
        queue=queue, priority=priority, tenant=tenant, id=lane, jobs=min(jobs, _COUNTED), oldest=moment(enqueued_at)
    )
