"""PRUNE: forget what ended long ago, a bounded amount of work per call."""

from __future__ import annotations

import json

from headrace.store.sqlite.depth import DEAD, Tx
from headrace.store.sqlite.rows import micros
from headrace.store.sqlite.statements import load
from headrace.store.terms import Pruned, Retention

_SQL = load("prune")
_ABSENT = 3_600_000_000
"""Workers not seen for an hour are forgotten; `workers` shows those of the last minute."""


def prune(tx: Tx, keep: Retention, limit: int) -> Pruned:
    horizons = {"done": tx.now - micros(keep.done), "cancelled": tx.now - micros(keep.done)}
    if not keep.dead_by_queue:
        horizons["dead"] = tx.now - micros(keep.dead)
    dropped = 0
    for state, horizon in horizons.items():
        dropped += _drop(tx, state, horizon, limit - dropped)
    unlike = _Unlike(tx, keep) if keep.dead_by_queue else None
    if unlike is not None:
        dropped += unlike.drop(limit - dropped)
    tx.cur.execute(_SQL["hollow"], (limit,))
    tx.cur.execute(_SQL["hollow_newest"])
    tx.cur.execute(_SQL["idem"], (tx.now, limit))
    tx.cur.execute(_SQL["units"], (tx.now, limit))
    tx.cur.execute(_SQL["workers"], (tx.now - _ABSENT,))
    more = any(tx.cur.execute(_SQL["any_old"], old).fetchone() for old in horizons.items())
    more = more or (unlike is not None and bool(unlike.keys(1)))
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
    return _forget(tx, state, keys, ends)


class _Unlike:
    """Dead jobs of queues that keep theirs for times of their own. A dead job is a range of one."""

    def __init__(self, tx: Tx, keep: Retention) -> None:
        self._tx = tx
        times = {queue: tx.now - micros(length) for queue, length in keep.dead_by_queue.items()}
        others = tx.now - micros(keep.dead)
        self._values = {"latest": max(others, *times.values()), "others": others, "times": json.dumps(times)}

    def keys(self, limit: int) -> list[int]:
        rows = self._tx.cur.execute(_SQL["old_dead"], {**self._values, "limit": limit}).fetchall()
        return [lo for (lo,) in rows]

    def drop(self, limit: int) -> int:
        keys = self.keys(limit)
        return _forget(self._tx, "dead", keys, keys)


def _forget(tx: Tx, state: str, keys: list[int], ends: list[int]) -> int:
    """Jobs by key, and ended ranges by their `lo`."""
    if not keys:
        return 0
    some = (str(keys),)
    if state == "dead":
        for queue, count in tx.cur.execute(_SQL["queues"], some).fetchall():
            tx.depth.add(queue, DEAD, -count)
    tx.cur.execute(_SQL["jobs"], some)
    for those in ("failures", "locks", "reports"):
        tx.cur.execute(_SQL[those], some)
    tx.cur.execute(_SQL["endings"], (str(ends),))
    tx.cur.execute(_SQL["empty"], (str(sorted({key >> 16 for key in keys})),))
    return len(keys)
