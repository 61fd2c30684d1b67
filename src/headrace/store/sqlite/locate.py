"""Locate: finds the range that holds a job now, and takes the job out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.model.job import JobId, split_id
from headrace.store.sqlite import chains, unsorted
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import INSERT_BLOCKED, INSERT_ENDINGS, INSERT_READY, INSERT_SCHEDULED, Row

_SQL = load("locate")


@dataclass(slots=True)
class Spot:
    """The place of one job."""

    key: int
    state: Literal["ready", "scheduled", "blocked", "running", "done", "dead", "cancelled"]
    lane: tuple[str, int, str, int]
    """queue, priority, tenant, lane: as the ready table's key begins."""
    row: Row
    """The range it sits in, as its table has it from `lo` on; empty while running."""
    attempt: int
    failures: int
    crashes: int
    chained: bool = False
    """Whether the range is a chain."""
    token: bytes = b""
    position: int = -1

    @property
    def queue(self) -> str:
        return self.lane[0]

    @property
    def finished_at(self) -> int:
        """For jobs that have ended."""
        at: int = self.row[6]
        return at


def locate(tx: Tx, id: JobId) -> Spot | None:
    key = key_of(tx, id)
    return None if key is None else locate_key(tx, key)


def key_of(tx: Tx, id: JobId) -> int | None:
    """The key of a job, if its batch is known. The job itself may be gone."""
    batch, ord = split_id(id)
    seq = tx.cur.execute(_SQL["seq"], (batch.bytes,)).fetchone()
    return None if seq is None else seq[0] << 16 | ord


def locate_key(tx: Tx, key: int) -> Spot | None:
    lane = tx.cur.execute(_SQL["job"], (key,)).fetchone()
    if lane is None:
        return None
    ending = tx.cur.execute(_SQL["ending"], (key,)).fetchone()
    if ending is not None and ending[1] >= key:
        return Spot(key, ending[2], lane, ending, *ending[3:6])
    scheduled = tx.cur.execute(_SQL["scheduled"], (key,)).fetchone()
    if scheduled is not None and scheduled[1] >= key:
        return Spot(key, "scheduled", lane, scheduled, *scheduled[2:5])
    ready = tx.cur.execute(_SQL["ready"], (*lane, key)).fetchone()
    if ready is not None and ready[1] >= key:
        return Spot(key, "ready", lane, ready, *ready[2:5])
    blocked = tx.cur.execute(_SQL["blocked"], (key,)).fetchone()
    if blocked is not None and blocked[1] >= key:
        return Spot(key, "blocked", lane, blocked, *blocked[2:5])
    if (chain := chains.around(tx, key)) is not None:
        return Spot(key, "blocked", lane, chain, 0, 0, 0, chained=True)
    for lease in leases.around(tx, key, key):
        position = lease.position_of(key)
        if position is not None:
            held = lease.ranges.spread()[position]
            counts = held.attempt, held.failures, held.crashes
            return Spot(key, "running", lane, (), *counts, token=lease.token, position=position)
    done = unsorted.find(tx, [key]).get(key)
    return None if done is None else Spot(key, "done", lane, done, *done[3:6])


def take_out(tx: Tx, spot: Spot) -> None:
    """Remove a job from its range, which may become two. Not for running ones."""
    lo, hi, rest = spot.row[0], spot.row[1], spot.row[2:]
    pieces = [(a, b) for a, b in ((lo, spot.key - 1), (spot.key + 1, hi)) if a <= b]
    if spot.state == "ready":
        tx.cur.execute(_SQL["drop_ready"], (*spot.lane, lo))
        INSERT_READY.insert(tx.cur, [(*spot.lane, a, b, *rest) for a, b in pieces])
    elif spot.state == "scheduled":
        tx.cur.execute(_SQL["drop_scheduled"], (lo,))
        INSERT_SCHEDULED.insert(tx.cur, [(*spot.lane, a, b, *rest) for a, b in pieces])
    elif spot.chained:
        chains.take_out(tx, hi, spot.key)
    elif spot.state == "blocked":
        waits = tx.cur.execute(_SQL["blocked_rows"], (lo,)).fetchall()
        tx.cur.execute(_SQL["drop_blocked"], (lo,))
        INSERT_BLOCKED.insert(tx.cur, [(*wait, *spot.lane, a, b, *rest) for wait in waits for a, b in pieces])
    else:
        unsorted.sort_in(tx)  # it may be there still
        tx.cur.execute(_SQL["drop_ending"], (lo,))
        INSERT_ENDINGS.insert(tx.cur, [(a, b, *rest) for a, b in pieces])
