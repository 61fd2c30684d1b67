"""DELETE: the store forgets jobs that are not running and in a state that the call names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from headrace.model.job import FINISHED, JobId, JobState
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import BLOCKED, DEAD, READY, SCHEDULED, Tx
from headrace.store.sqlite.gates import count
from headrace.store.sqlite.inbox import fold
from headrace.store.sqlite.locate import locate, take_out
from headrace.store.sqlite.rows import micros

_SQL = load("delete")
_COUNTED = {"ready": READY, "scheduled": SCHEDULED, "blocked": BLOCKED, "dead": DEAD}


def delete(
    tx: Tx, ids: Sequence[JobId], states: Collection[JobState] | None, ended_by: datetime | None
) -> frozenset[JobId]:
    fold(tx)
    takes = frozenset(JobState if states is None else states) - {JobState.RUNNING}
    by = None
    if ended_by is not None:
        takes, by = takes & FINISHED, micros(ended_by)
    return frozenset(id for id in dict.fromkeys(ids) if _delete(tx, id, takes, by))


def _delete(tx: Tx, id: JobId, takes: frozenset[str], by: int | None) -> bool:
    spot = locate(tx, id)
    if spot is None or spot.state not in takes or (by is not None and spot.finished_at > by):
        return False
    take_out(tx, spot)
    if (counter := _COUNTED.get(spot.state)) is not None:
        tx.depth.add(spot.queue, counter, -1)
    tx.cur.execute(_SQL["job"], (spot.key,))
    for those in ("failures", "lock", "report", "steps"):
        tx.cur.execute(_SQL[those], (spot.key,))
    tx.cur.execute(_SQL["hollow"], (spot.key >> 16,))
    if spot.state not in {"done", "cancelled"}:
        count(tx, [(spot.key, spot.key, "dead" if spot.state == "dead" else None, "cancelled")])
    return True
