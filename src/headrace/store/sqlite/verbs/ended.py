"""ENDED: finished jobs in the order of their ends."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from headrace.model.job import FINISHED, JobState, job_id
from headrace.model.records import Ending
from headrace.store.sqlite import unsorted
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import micros, moment

_SQL = load("ended")
_RANGES = 500
"""Ended ranges of each state that one step reads."""
_JOBS = 500
"""Jobs that one step reads."""

Range = tuple[int, bytes, int, int]
"""(when it ended, its batch, its first key, its last key): ranges sort as the jobs in them do."""


class Endings:
    """One call of `ended`, step by step: a step reads so many ranges and so many jobs, and other reads run in between."""

    def __init__(self, since: datetime, limit: int) -> None:
        self._limit = limit
        self._from = micros(since)
        self._reached: tuple[int, bytes, int] | None = None
        self._endings: list[Ending] = []

    def step(self, tx: Tx) -> list[Ending] | None:
        """The endings; None: there is more to read."""
        if self._limit < 1:
            return []
        ranges, upto = self._ranges(tx)
        left = _JOBS
        for (at, batch, first, last), state in ranges:
            # A range may have 65,536 jobs, so a step also begins and ends within one.
            lo = (
                first if self._reached is None or self._reached[:2] != (at, batch) else max(first, self._reached[2] + 1)
            )
            hi = min(last, lo + min(left, self._limit - len(self._endings)) - 1)
            self._tell(tx, (at, batch, lo, hi), state)
            left -= hi - lo + 1
            if len(self._endings) >= self._limit:
                return self._endings
            if left == 0:
                self._from = at
                return None
        if upto is None:
            return self._endings
        self._from = upto
        return None

    def _tell(self, tx: Tx, one: Range, state: JobState) -> None:
        at, batch, lo, hi = one
        id, when = UUID(bytes=batch), moment(at)
        for key, queue, task, tenant in tx.cur.execute(_SQL["jobs"], (lo, hi)).fetchall():
            self._endings.append(Ending(job_id(id, key & 0xFFFF), state, when, queue, task, tenant))
        self._reached = at, batch, hi

    def _ranges(self, tx: Tx) -> tuple[list[tuple[Range, JobState]], int | None]:
        """The next ranges in the order of their ends, all that ended before a moment, and that moment; None: all there are."""
        by_state: dict[JobState, list[Range]] = {}
        upto: int | None = None
        for state in FINISHED:
            rows = by_state[state] = tx.cur.execute(_SQL["ranges"], (state.value, self._from, _RANGES)).fetchall()
            if len(rows) == _RANGES:
                upto = rows[-1][0] if upto is None else min(upto, rows[-1][0])
        if upto is not None and upto == self._from:
            # One moment has more ranges than a step reads. Only all of them can be sorted by the ids of their jobs.
            for state in FINISHED:
                by_state[state] = tx.cur.execute(_SQL["moment"], (state.value, upto)).fetchall()
            upto += 1
        by_state[JobState.DONE] += unsorted.ranges(tx, self._from)
        known = [(row, state) for state, rows in by_state.items() for row in rows if upto is None or row[0] < upto]
        reached = self._reached
        return sorted(
            entry for entry in known if reached is None or (entry[0][0], entry[0][1], entry[0][3]) > reached
        ), upto
