"""STATS and WORKERS: every queue in figures, and who is there."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec

from headrace.lane import HIGHEST_PRIORITY
from headrace.lease import Presence, WorkerId
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.rows import moment
from headrace.store.sqlite.statements import load
from headrace.store.sqlite.turns import LOWEST_LANE
from headrace.store.terms import QueueStats, Stats

_SQL = load("stats")
_SEEN = load("workers")["seen"]
_MINUTE = 60_000_000
_MANY = 100_000
_MANY_LANES = 1000


def stats(tx: Tx) -> Stats:
    queues: list[QueueStats] = []
    for queue, ready, scheduled, running, dead, done, failed, enqueued, paused in tx.cur.execute(
        _SQL["depth"], (tx.now,)
    ).fetchall():
        queues.append(
            QueueStats(
                queue=queue,
                ready=ready,
                scheduled=scheduled,
                running=running,
                dead=dead,
                done_total=done,
                failed_total=failed,
                enqueued_total=enqueued,
                oldest_ready=_oldest(tx, queue, ready) if ready else None,
                paused=bool(paused),
            )
        )
    return Stats(queues)


def _oldest(tx: Tx, queue: str, ready: int) -> timedelta | None:
    """By looking at every range, or in a long line at the heads of its lanes only."""
    at = _oldest_head(tx, queue) if ready > _MANY else None
    if at is None:
        row = tx.cur.execute(_SQL["oldest"], (queue,)).fetchone()
        at = None if row is None else row[0]
    return None if at is None else timedelta(microseconds=tx.now - at)


def _oldest_head(tx: Tx, queue: str) -> int | None:
    oldest: int | None = None
    looks = 0
    priority = HIGHEST_PRIORITY + 1
    while (row := tx.cur.execute(_SQL["priority_below"], (queue, priority)).fetchone()) is not None:
        priority, lane = row[0], ("", LOWEST_LANE)
        while (head := tx.cur.execute(_SQL["head"], (queue, priority, *lane)).fetchone()) is not None:
            lane, at = head[:2], head[2]
            oldest = at if oldest is None else min(oldest, at)
            looks += 1
            if looks > _MANY_LANES:
                return None
    return oldest


def workers(tx: Tx) -> list[Presence]:
    return [
        Presence(
            id=WorkerId(UUID(bytes=id)),
            name=name,
            queues=tuple(msgspec.json.decode(queues, type=list[str])),
            slots=slots,
            running=running,
            version=version,
            started_at=moment(started_at),
            tasks=tuple(msgspec.json.decode(tasks, type=list[str])),
            hindered=tuple(msgspec.json.decode(hindered, type=list[str])),
            seen_at=moment(seen_at),
        )
        for id, name, queues, slots, running, version, started_at, tasks, seen_at, hindered in tx.cur.execute(
            _SEEN, (tx.now - _MINUTE,)
        ).fetchall()
    ]
