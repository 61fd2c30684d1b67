"""RETRY: an operator makes finished or scheduled jobs ready now, with a clean slate; or scheduled ones as if they were due."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import JobId
from headrace.store.sqlite.engine.transaction import DEAD, READY, SCHEDULED, Tx
from headrace.store.sqlite.gates import count
from headrace.store.sqlite.locate import locate, take_out
from headrace.store.sqlite.rows import INSERT_READY
from headrace.store.sqlite.verbs.steps import forget_steps, is_undone


def retry(tx: Tx, ids: Sequence[JobId], *, afresh: bool) -> frozenset[JobId]:
    return frozenset(id for id in dict.fromkeys(ids) if _retry(tx, id, afresh=afresh))


def _retry(tx: Tx, id: JobId, *, afresh: bool) -> bool:
    spot = locate(tx, id)
    if spot is None or spot.state in {"ready", "running", "blocked"} or (not afresh and spot.state != "scheduled"):
        return False
    take_out(tx, spot)
    if spot.state == "scheduled":
        tx.depth.add(spot.queue, SCHEDULED, -1)
    elif spot.state == "dead":
        tx.depth.add(spot.queue, DEAD, -1)
    if spot.state in {"done", "cancelled"} or (spot.state == "dead" and is_undone(tx, spot.key)):
        forget_steps(tx, spot.key)
    # A scheduled range is lo, hi, attempt, failures, crashes, suspect, note, run_at.
    counts = (spot.attempt, 0, 0, 0, None) if afresh else spot.row[2:7]
    INSERT_READY.insert(tx.cur, [(*spot.lane, spot.key, spot.key, *counts)])
    tx.depth.add(spot.queue, READY)
    if spot.state != "scheduled":
        count(tx, [(spot.key, spot.key, spot.state, None)])
    return True
