"""PRUNE: forget what ended long ago, a bounded amount of work per call."""

from __future__ import annotations

from headrace.store.contract import Pruned, Retention
from headrace.store.sqlite.depth import DEAD, Tx
from headrace.store.sqlite.rows import micros
from headrace.store.sqlite.statements import load

_SQL = load("prune")
_ABSENT = 3_600_000_000
"""Workers not seen for an hour are forgotten; `workers` shows those of the last minute."""


def prune(tx: Tx, keep: Retention, limit: int) -> Pruned:
    horizons = {
        "done": tx.now - micros(keep.done), "cancelled": tx.now - micros(keep.done), "dead": tx.now - micros(keep.dead)
    }  # fmt: skip
    dropped = 0
    for state, horizon in horizons.items():
        dropped += _drop(tx, state, horizon, limit - dropped)
    tx.cur.execute(_SQL["hollow"], (limit,))
    tx.cur.execute(_SQL["hollow_newest"])
    tx.cur.execute(_SQL["idem"], (tx.now, limit))
    tx.cur.execute(_SQL["workers"], (tx.now - _ABSENT,))
    more = any(tx.cur.execute(_SQL["any_old"], old).fetchone() for old in horizons.items())
    return Pruned(dropped, more)


def _drop(tx: Tx, state: str, horizon: int, limit: int) -> int:
    """At most `limit` jobs that ended so before the horizon."""
    keys: list[int] = []
    ends: list[int] = []
    for lo, hi in tx.cur.execute(_SQL["old"], (state, horizon, limit)).fetchall():
        last = min(hi, lo + limit - len(keys) - 1)
        keys += range(lo, last + 1)
        if last == hi:
            ends.append(lo)
            continue
        if last >= lo:
            tx.cur.execute(_SQL["shorten"], (last + 1, lo))
        break
    if not keys:
        return 0
    some = (str(keys),)
    if state == "dead":
        for queue, count in tx.cur.execute(_SQL["queues"], some).fetchall():
            tx.depth.add(queue, DEAD, -count)
    tx.cur.execute(_SQL["jobs"], some)
    tx.cur.execute(_SQL["failures"], some)
    tx.cur.execute(_SQL["endings"], (str(ends),))
    tx.cur.execute(_SQL["empty"], (str(sorted({key >> 16 for key in keys})),))
    return len(keys)
