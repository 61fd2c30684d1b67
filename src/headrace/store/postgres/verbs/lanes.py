"""LANES: what waits, lane by lane. A queue with many lanes shows others at each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.model.lane import MAX_LANES, LaneView
from headrace.store.postgres.arguments import Int2, Int4, Int8, Text, call
from headrace.store.postgres.server import Server


class LanesArgs(NamedTuple):
    """See `sql/lanes.sql`."""

    p_queue: Text
    p_limit: Int4
    p_ranges: Int4
    a_priority: Int2 | None
    a_tenant: Text | None
    a_lane: Int8 | None


_LANES: Final = call("lane_page", LanesArgs)
_PAGE: Final = 100
"""Lanes that one statement counts the jobs of."""
_RANGES: Final = 5000
"""Ranges that it counts, and with its last lane up to 10,000 more."""

Spot = tuple[int, str, int]
"""Priority, tenant, lane."""
_NO_LANE: Final = (None, None, None)


class LaneViews:
    """The looks of one store object at lanes. It remembers where the last one of each queue ended."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._looked: dict[str, Spot] = {}

    async def lanes(self, queues: Sequence[str], limit: int) -> list[LaneView]:
        most = min(limit, MAX_LANES)
        return [view for queue in dict.fromkeys(queues) for view in await self._lanes_of(queue, most)]

    async def _lanes_of(self, queue: str, limit: int) -> list[LaneView]:
        """Lanes after those of the last look, then from the first one on up to there; some in each statement."""
        start = at = self._looked.pop(queue, None)
        again = start is None
        views: list[LaneView] = []
        while len(views) < limit:
            priority, tenant, lane = at or _NO_LANE
            most = min(_PAGE, limit - len(views))
            args = LanesArgs(queue, most, _RANGES, a_priority=priority, a_tenant=tenant, a_lane=lane)
            page = await self._server.pool.rows(_LANES, *args, write=False, timeout=60)
            for priority, tenant, lane, jobs, oldest, _ in page:
                at = priority, tenant, lane
                if again and start is not None and _order(at) > _order(start):
                    return views
                views.append(LaneView(queue=queue, priority=priority, tenant=tenant, id=lane, jobs=jobs, oldest=oldest))
            if not page or not page[-1]["more"]:
                if again:
                    return views
                again, at = True, None
        if at is not None:
            self._looked[queue] = at
        return views


def _order(spot: Spot) -> Spot:
    return -spot[0], spot[1], spot[2]
