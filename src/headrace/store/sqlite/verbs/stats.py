"""STATS and WORKERS: every queue in figures, and the workers of the last minute."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.model.lane import HIGHEST_PRIORITY
from headrace.model.lease import Presence, WorkerId
from headrace.model.records import QueueStats, Stats
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.fairness.turn_state import LOWEST_LANE
from headrace.store.sqlite.rows import moment

_SQL = load("stats")
_SEEN = load("workers")["seen"]
_MINUTE = 60_000_000
_QUEUES = 500
"""Queues that one step reads the figures of."""
_HEADS = 500
"""Lanes that one step looks at for the oldest job."""
_FEW = 100
"""Jobs. The store reads all ranges of a queue with no more, which takes less time than to find its lanes."""
_MOST_LANES = 1000
"""Lanes of a queue that are looked at for its oldest job."""

Spot = tuple[int, str, int]
"""Priority, tenant, lane."""
_BEFORE_ALL: Spot = (HIGHEST_PRIORITY + 1, "", LOWEST_LANE)


class Figures:
    """One call of `stats`, step by step: other reads run in between, and a call that is cancelled ends with its step."""

    def __init__(self) -> None:
        self._last = ""
        self._queues: list[QueueStats] = []
        self._waiting: deque[int] | None = None
        self._at = _BEFORE_ALL
        self._looked = 0
        self._oldest: int | None = None

    def step(self, tx: Tx) -> Stats | None:
        """The figures; None: there is more to look at."""
        if self._waiting is None:
            self._read_queues(tx)
            return None
        looks = _HEADS
        while self._waiting and looks > 0:
            looks -= self._look(tx, self._waiting[0], looks)
        return None if self._waiting else Stats(self._queues)

    def _read_queues(self, tx: Tx) -> None:
        rows = tx.cur.execute(_SQL["depth"], (tx.now, self._last, _QUEUES)).fetchall()
        for queue, ready, scheduled, running, dead, done, failed, enqueued, blocked, paused in rows:
            self._last = queue
            self._queues.append(
                QueueStats(
                    queue=queue,
                    ready=ready,
                    scheduled=scheduled,
                    running=running,
                    blocked=blocked,
                    dead=dead,
                    done_total=done,
                    failed_total=failed,
                    enqueued_total=enqueued,
                    paused=bool(paused),
                )
            )
        if len(rows) < _QUEUES:
            self._waiting = deque(number for number, figures in enumerate(self._queues) if figures.ready)

    def _look(self, tx: Tx, number: int, most: int) -> int:
        """Look at up to so many lanes of a queue, the first jobs of which are their oldest; how many looks it took."""
        queue, ready = self._queues[number].queue, self._queues[number].ready
        if ready <= _FEW:
            row = tx.cur.execute(_SQL["oldest"], (queue, _FEW)).fetchone()
            self._oldest = None if row is None else row[0]
            self._note(tx, number, more=False)
            return 1 + ready // 10
        looks = 0
        while looks < most:
            looks += 1
            head = tx.cur.execute(_SQL["head"], (queue, *self._at)).fetchone()
            if head is None or self._looked == _MOST_LANES:
                self._note(tx, number, more=head is not None)
                break
            self._looked += 1
            self._at = head[:3]
            self._oldest = head[3] if self._oldest is None else min(self._oldest, head[3])
        return looks

    def _note(self, tx: Tx, number: int, *, more: bool) -> None:
        age = None if self._oldest is None else timedelta(microseconds=tx.now - self._oldest)
        self._queues[number] = replace(self._queues[number], oldest_ready=age, oldest_at_least=more)
        self._at, self._looked, self._oldest = _BEFORE_ALL, 0, None
        assert self._waiting is not None  # the queues are read before their lanes
        self._waiting.popleft()


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
            memory=memory,
            seen_at=moment(seen_at),
        )
        for id, name, queues, slots, running, version, started_at, tasks, seen_at, hindered, memory in tx.cur.execute(
            _SEEN, (tx.now - _MINUTE,)
        ).fetchall()
    ]
