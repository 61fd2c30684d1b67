"""AHEAD: what a waiting job waits behind. A range holds a job or more, so `limit` ranges are enough to look at."""

from __future__ import annotations

from headrace.job import JobId
from headrace.lane import Ahead
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.locate import locate
from headrace.store.sqlite.rows import maybe_moment
from headrace.store.sqlite.statements import load

_SQL = load("ahead")


def ahead(tx: Tx, id: JobId, limit: int) -> Ahead | None:
    spot = locate(tx, id)
    if spot is None or spot.state not in {"ready", "scheduled"}:
        return None
    lane = higher = 0
    if spot.state == "ready":
        queue, priority = spot.lane[:2]
        own_lo: int = spot.row[0]
        before = tx.cur.execute(_SQL["lane"], (*spot.lane, own_lo, limit)).fetchone()[0]
        lane = before + spot.key - own_lo
        higher = tx.cur.execute(_SQL["higher"], (queue, priority, limit)).fetchone()[0]
    by, since = tx.cur.execute(_SQL["paused"], (spot.queue,)).fetchone() or (None, None)
    return Ahead(
        lane=min(lane, limit),
        higher=min(higher, limit),
        limit=limit,
        suspect=bool(spot.row[5]),
        paused_by=by,
        paused_since=maybe_moment(since),
    )
