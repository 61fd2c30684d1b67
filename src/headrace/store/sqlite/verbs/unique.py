"""Unique locks of a batch: which jobs meet a holder, which replace one, and which take the lock."""

from __future__ import annotations

from uuid import UUID

from headrace.model.job import Batch, JobId, NewJob, job_id
from headrace.store.batches import stand_ins
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.locate import Spot, locate_key
from headrace.store.sqlite.rows import micros
from headrace.store.sqlite.verbs.cancel import cancel_waiting

_SQL = load("enqueue")


class Locks:
    def __init__(self, tx: Tx, batch: Batch) -> None:
        self._tx = tx
        self._batch = batch
        self._taken: list[int] = []

    def meet(self, existing: dict[int, JobId]) -> None:
        """Add the places that meet a holder; holders that wait and are replaced end here."""
        if all(job.unique is None for job in self._batch.jobs):
            return
        others = stand_ins(self._batch, existing)
        for ord, new in enumerate(self._batch.jobs):
            if new.unique is None or ord in existing or ord in others:
                continue
            holder = self._holder(new)
            if holder is not None and not new.unique.replace:
                existing[ord] = holder[0]
                continue
            if holder is not None and holder[1].state in {"ready", "scheduled", "blocked"}:
                cancel_waiting(self._tx, holder[1], "replaced")
            self._taken.append(ord)
        for ord, other in others.items():
            existing[ord] = existing.get(other, job_id(self._batch.id, other))

    def take(self, base: int) -> None:
        for ord in self._taken:
            new = self._batch.jobs[ord]
            assert new.unique is not None  # that is why it is among them
            self._tx.cur.execute(_SQL["take_lock"], (new.task, new.unique.name, base + ord))

    def _holder(self, new: NewJob) -> tuple[JobId, Spot] | None:
        """The job that holds the new one's lock right now."""
        assert new.unique is not None  # callers have checked
        row = self._tx.cur.execute(_SQL["lock"], (new.task, new.unique.name)).fetchone()
        if row is None:
            return None
        key, batch, enqueued_at = row
        spot = locate_key(self._tx, key)
        if spot is None or spot.state not in new.unique.states:
            return None
        within = new.unique.within
        if within is not None and enqueued_at + micros(within) <= self._tx.now:
            return None
        return job_id(UUID(bytes=batch), key & 0xFFFF), spot
