"""CANCEL: waiting jobs end at once, running ones are asked to stop, finished ones stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import JobId
from headrace.model.records import CancelAnswer
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import BLOCKED, READY, SCHEDULED, Tx
from headrace.store.sqlite.gates import count
from headrace.store.sqlite.inbox import fold
from headrace.store.sqlite.locate import Spot, locate, take_out
from headrace.store.sqlite.rows import INSERT_ENDINGS, maybe_text

_SQL = load("cancel")
_COUNTED = {"ready": READY, "scheduled": SCHEDULED, "blocked": BLOCKED}


def cancel(tx: Tx, ids: Sequence[JobId], reason: str | None) -> dict[JobId, CancelAnswer]:
    fold(tx)
    return {id: _cancel(tx, id, maybe_text(reason)) for id in dict.fromkeys(ids)}


def _cancel(tx: Tx, id: JobId, reason: str | None) -> CancelAnswer:
    spot = locate(tx, id)
    if spot is None:
        return CancelAnswer.UNKNOWN
    if spot.state == "running":
        tx.cur.execute(_SQL["stop"], (spot.token, spot.position, reason))
        return CancelAnswer.ASKED
    if spot.state not in _COUNTED:
        return CancelAnswer.FINISHED
    cancel_waiting(tx, spot, reason)
    return CancelAnswer.CANCELLED


def cancel_waiting(tx: Tx, spot: Spot, reason: str | None) -> None:
    take_out(tx, spot)
    tx.depth.add(spot.queue, _COUNTED[spot.state], -1)
    row = (
        spot.key, spot.key, "cancelled", spot.attempt, spot.failures, spot.crashes, tx.now, None, None, reason, None, None,
    )  # fmt: skip
    INSERT_ENDINGS.insert(tx.cur, [row])
    count(tx, [(spot.key, spot.key, None, "cancelled")])
