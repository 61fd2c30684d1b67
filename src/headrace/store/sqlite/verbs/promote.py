"""PROMOTE: jobs that are due become ready."""

from __future__ import annotations

from datetime import timedelta

from headrace.model.records import Promoted
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.blocked import follow_on, wake_due
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import READY, SCHEDULED, Tx
from headrace.store.sqlite.rows import INSERT_READY, Row

_SQL = load("promote")


def nothing_due(tx: Tx) -> Promoted | None:
    """The answer if no job is due."""
    due = next_due(tx)
    return None if due is not None and not due else _promoted(tx, 0, due)


def promote(tx: Tx, limit: int) -> Promoted:
    moved = 0
    rows: list[Row] = []
    for row in tx.cur.execute(_SQL["due"], (tx.now, limit)).fetchall():
        lo, hi = row[4], row[5]
        size = min(hi - lo + 1, limit - moved)
        if size <= 0:
            break
        if lo + size <= hi:
            tx.cur.execute(_SQL["shorten"], (lo + size, lo))
        else:
            tx.cur.execute(_SQL["leave"], (lo,))
        rows.append((*row[:5], lo + size - 1, *row[6:]))
        tx.depth.move(row[0], SCHEDULED, READY, size)
        moved += size
    INSERT_READY.insert(tx.cur, rows)
    moved += wake_due(tx, limit - moved) if moved < limit else 0
    moved += follow_on(tx, limit)
    return _promoted(tx, moved, next_due(tx))


def _promoted(tx: Tx, moved: int, due: timedelta | None) -> Promoted:
    expiry = leases.next_expiry(tx)
    return Promoted(moved, due, expired=expiry == timedelta(0), next_expiry=expiry)


def next_due(tx: Tx) -> timedelta | None:
    """From now to the earliest job still scheduled, or suspended until a time. Zero: something is left to release."""
    (run_at,) = tx.cur.execute(_SQL["next"]).fetchone()
    return None if run_at is None else timedelta(microseconds=max(run_at - tx.now, 0))
