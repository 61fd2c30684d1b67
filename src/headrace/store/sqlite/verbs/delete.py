"""DELETE: the store forgets jobs that are not running and in a state that the call names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.model.job import JobId, JobState
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import DEAD, READY, SCHEDULED, Tx
from headrace.store.sqlite.locate import locate, take_out

_SQL = load("delete")
_COUNTED = {"ready": READY, "scheduled": SCHEDULED, "dead": DEAD}


def delete(tx: Tx, ids: Sequence[JobId], states: Collection[JobState] | None) -> frozenset[JobId]:
    takes = frozenset(JobState if states is None else states) - {JobState.RUNNING}
    return frozenset(id for id in dict.fromkeys(ids) if _delete(tx, id, takes))


def _delete(tx: Tx, id: JobId, takes: frozenset[str]) -> bool:
    spot = locate(tx, id)
    if spot is None or spot.state not in takes:
        return False
    take_out(tx, spot)
    if (counter := _COUNTED.get(spot.state)) is not None:
        tx.depth.add(spot.queue, counter, -1)
    tx.cur.execute(_SQL["job"], (spot.key,))
    for those in ("failures", "lock", "report", "steps"):
        tx.cur.execute(_SQL[those], (spot.key,))
    tx.cur.execute(_SQL["hollow"], (spot.key >> 16,))
    return True
