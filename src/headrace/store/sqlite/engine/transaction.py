"""A transaction as verbs see it: cursor, time, the counts of queues to change, and the queues to wake workers for."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from headrace.store.sqlite.engine.statements import load

READY, SCHEDULED, RUNNING, DEAD, DONE_TOTAL, FAILED_TOTAL, ENQUEUED_TOTAL, BLOCKED = range(8)

_SQL = load("depth")


@dataclass(slots=True)
class Depth:
    """Differences of counts by queue, written once before the commit."""

    changes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    awake: set[str] = field(default_factory=set[str])

    def add(self, queue: str, counter: int, count: int = 1) -> None:
        """Count, and wake workers for what is ready from now on."""
        self.count(queue, counter, count)
        if counter == READY and count > 0:
            self.awake.add(queue)

    def count(self, queue: str, counter: int, count: int) -> None:
        counters = self.changes.get(queue)
        if counters is None:
            counters = self.changes[queue] = [0] * 8
        counters[counter] += count

    def move(self, queue: str, source: int, target: int, count: int = 1) -> None:
        self.add(queue, source, -count)
        self.add(queue, target, count)

    def merge(self, other: Depth) -> None:
        for queue, counters in other.changes.items():
            mine = self.changes.get(queue)
            self.changes[queue] = counters if mine is None else [a + b for a, b in zip(mine, counters, strict=True)]
        self.awake |= other.awake

    def write(self, cur: sqlite3.Cursor) -> None:
        for queue, counters in self.changes.items():
            if any(counters):
                cur.execute(_SQL["add"], (queue, *counters))


@dataclass(slots=True)
class Tx:
    """What a verb gets: a cursor inside a transaction, the time, and the counts that it changes."""

    cur: sqlite3.Cursor
    now: int
    """Microseconds since 1970 by the store's clock."""
    depth: Depth = field(default_factory=Depth)
    waited: float = 0.0
    """Seconds spent waiting for the write lock."""
