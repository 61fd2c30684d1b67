"""RETRY: an operator makes finished or scheduled jobs ready now, with a clean slate."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.job import JobId
from headrace.store.sqlite.depth import DEAD, READY, SCHEDULED, Tx
from headrace.store.sqlite.enqueue import INSERT_READY
from headrace.store.sqlite.locate import locate, take_out


def retry(tx: Tx, ids: Sequence[JobId]) -> frozenset[JobId]:
    return frozenset(id for id in dict.fromkeys(ids) if _retry(tx, id))


def _retry(tx: Tx, id: JobId) -> bool:
    spot = locate(tx, id)
    if spot is None or spot.state in {"ready", "running"}:
        return False
    take_out(tx, spot)
    if spot.state == "scheduled":
        tx.depth.add(spot.queue, SCHEDULED, -1)
    elif spot.state == "dead":
        tx.depth.add(spot.queue, DEAD, -1)
    INSERT_READY.insert(tx.cur, [(*spot.lane, spot.key, spot.key, spot.attempt, 0, 0, 0, None)])
    tx.depth.add(spot.queue, READY)
    return True
