"""PRUNE: the store forgets what ended long ago, with a bounded amount of work per call."""

from __future__ import annotations

import json
from uuid import UUID

from headrace.model.job import JobId, job_id
from headrace.model.records import Pruned, Retention
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.gates import prune_gates
from headrace.store.sqlite.rows import micros
from headrace.store.sqlite.unsorted import sort_in

_SQL = load("prune")
_STATES = ("done", "cancelled")
_RESULTS = 1000
"""Results that one call removes the bytes of."""
_NAMED = 60 * 86_400_000_000
"""Microseconds. The store keeps the name of a worker that has left for at least 60 days."""
_ABSENT = 3_600_000_000
"""Workers not seen for an hour are forgotten; `workers` shows those of the last minute."""


class Pruning:
    """Goes through what is past retention, from the oldest end to the newest. What gates keep is passed over."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        """The end of the last range that was looked at, and its first job, by state. The next call continues behind it."""

    def prune(self, tx: Tx, keep: Retention, limit: int) -> Pruned:
        sort_in(tx)
        horizon = tx.now - micros(keep.done)
        gates = prune_gates(tx, keep, limit)
        dropped = 0
        for state in _STATES:
            dropped += self._drop(tx, state, horizon, limit - dropped)
        results = tx.cur.execute(_SQL["results"], (tx.now, _RESULTS)).rowcount
        tx.cur.execute(_SQL["hollow"], (limit,))
        tx.cur.execute(_SQL["hollow_newest"])
        tx.cur.execute(_SQL["idem"], (tx.now, limit))
        tx.cur.execute(_SQL["units"], (tx.now, limit))
        tx.cur.execute(_SQL["workers"], (tx.now - _ABSENT,))
        tx.cur.execute(_SQL["runners"], (tx.now - max(_NAMED, 2 * micros(keep.dead)),))
        more = any(
            tx.cur.execute(_SQL["any_old"], (state, *self._place(state), horizon)).fetchone() for state in _STATES
        )
        if not more:
            self._places.clear()
        return Pruned(dropped, more or results == _RESULTS or gates >= limit)

    def _place(self, state: str) -> tuple[int, int]:
        return self._places.get(state, (0, 0))

    def _drop(self, tx: Tx, state: str, horizon: int, limit: int) -> int:
        """At most `limit` jobs that ended so before the horizon."""
        keys: list[int] = []
        ends: list[int] = []
        rows = tx.cur.execute(_SQL["old"], (state, *self._place(state), horizon, limit)).fetchall()
        for lo, hi, finished_at, kept in rows:
            if not kept:
                last = min(hi, lo + limit - len(keys) - 1)
                keys += range(lo, last + 1)
                if last < hi:
                    if last >= lo:
                        tx.cur.execute(_SQL["shorten"], (last + 1, lo))
                    break
                ends.append(lo)
            self._places[state] = (finished_at, lo)
        return _forget(tx, keys, ends)


def expired_dead(tx: Tx, keep: Retention, limit: int) -> list[JobId]:
    """Dead jobs past retention. Each is a range of one."""
    times = {queue: tx.now - micros(length) for queue, length in keep.dead_by_queue.items()}
    others = tx.now - micros(keep.dead)
    values = {"latest": max([others, *times.values()]), "others": others, "times": json.dumps(times), "limit": limit}
    rows = tx.cur.execute(_SQL["old_dead"], values).fetchall()
    return [job_id(UUID(bytes=batch), key & 0xFFFF) for batch, key in rows]


def _forget(tx: Tx, keys: list[int], ends: list[int]) -> int:
    """Jobs by key, and ended ranges by their `lo`."""
    if not keys:
        return 0
    some = (str(keys),)
    tx.cur.execute(_SQL["jobs"], some)
    for those in ("failures", "locks", "reports", "steps"):
        tx.cur.execute(_SQL[those], some)
    tx.cur.execute(_SQL["endings"], (str(ends),))
    tx.cur.execute(_SQL["empty"], (str(sorted({key >> 16 for key in keys})),))
    return len(keys)
