"""DELETE: forget jobs that are not running."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.job import JobId
from headrace.store.sqlite.depth import DEAD, READY, SCHEDULED, Tx
from headrace.store.sqlite.locate import locate, take_out
from headrace.store.sqlite.statements import load

_SQL = load("delete")
_COUNTED = {"ready": READY, "scheduled": SCHEDULED, "dead": DEAD}


def delete(tx: Tx, ids: Sequence[JobId]) -> frozenset[JobId]:
    return frozenset(id for id in dict.fromkeys(ids) if _delete(tx, id))


def _delete(tx: Tx, id: JobId) -> bool:
    spot = locate(tx, id)
    if spot is None or spot.state == "running":
        return False
    take_out(tx, spot)
    if (counter := _COUNTED.get(spot.state)) is not None:
        tx.depth.add(spot.queue, counter, -1)
    tx.cur.execute(_SQL["job"], (spot.key,))
    for those in ("failures", "lock", "report"):
        tx.cur.execute(_SQL[those], (spot.key,))
    tx.cur.execute(_SQL["hollow"], (spot.key >> 16,))
    return True
