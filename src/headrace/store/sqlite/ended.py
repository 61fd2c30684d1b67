"""ENDED: finished jobs in the order of their ends."""

from __future__ import annotations

import heapq
from datetime import datetime
from uuid import UUID

from headrace.job import FINISHED, job_id
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.rows import micros, moment
from headrace.store.sqlite.statements import load
from headrace.store.terms import Ending

_SQL = load("ended")


def ended(tx: Tx, since: datetime, limit: int) -> list[Ending]:
    if limit < 1:
        return []
    first = micros(since)
    last = _last(tx, first, limit)
    if last is None:
        return []
    found = [
        Ending(job_id(UUID(bytes=batch), key & 0xFFFF), state, moment(at), queue, task, tenant)
        for state in FINISHED
        for at, batch, key, queue, task, tenant in tx.cur.execute(_SQL["jobs"], (state.value, first, last)).fetchall()
    ]
    return sorted(found, key=lambda ending: (ending.at, ending.id))[:limit]


def _last(tx: Tx, first: int, limit: int) -> int | None:
    """When the last of so many jobs ended, or the last of all."""
    ends = [tx.cur.execute(_SQL["ends"], (state.value, first, limit)).fetchall() for state in FINISHED]
    last: int | None = None
    for at, jobs in heapq.merge(*ends):
        last = at
        limit -= jobs
        if limit <= 0:
            break
    return last
