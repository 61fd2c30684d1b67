"""Rollups: what became of the attempts of one task in one minute, hour or day, as counts and histograms."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import msgspec

from headrace.model.histogram import EMPTY

MINUTE: Final = 1
QUARTER: Final = 15
HOUR: Final = 60
DAY: Final = 24 * HOUR
"""The lengths of time that a rollup covers, in minutes. Hours and days begin as they do in UTC."""
SECTION: Final = 200_000 * DAY
"""Minutes that one section of history can hold: some five centuries, and whole days."""
MINUTES_FROM: Final = 4 * SECTION
"""Starts from here on are minutes that a quarter of an hour holds, too. They are kept for charts in steps of minutes."""
QUARTERS_FROM: Final = 5 * SECTION
"""Starts from here on are quarters of an hour that an hour holds, too."""
HOURS_FROM: Final = 6 * SECTION
"""Starts from here on are hours that a day holds, too."""
USAGE_FROM: Final = 7 * SECTION
"""Starts from here on are hours and days of usage. See `usage_rollup`."""
ALL_QUEUES: Final = "*"
"""The queue of a usage that is not about one queue: the slots of a worker serve several. No queue can have this name."""
OTHER_TASKS: Final = "*"
"""Stands for further tasks, where a worker has met more of them than it counts apart. No task can have this name."""
MAX_ROLLUPS: Final = 1000
"""Rollups that one call of a store adds, reads or folds, at most."""


class AttemptEnd(StrEnum):
    """How an attempt ended, as history counts it."""

    DONE = "done"
    """The job is done."""
    FAILED = "failed"
    """The attempt failed, and the job runs again."""
    DEAD = "dead"
    """The job is dead: the attempt failed and was its last one, or a deadline was over."""
    CANCELLED = "cancelled"
    """The job was cancelled while a worker held it."""
    SNOOZED = "snoozed"
    """The task asked to run again later, without a failure."""


class RollupKey(NamedTuple):
    """The name of a rollup, and its place in the order in which a store returns rollups."""

    start: int
    """Minutes since 1970, UTC, plus the beginning of the section."""
    id: UUID
    """Random, made by the writer: a rollup that is added twice counts once."""


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one task in one queue that ended alike, within one length of time."""

    start: int
    """The first minute, counted from 1970, UTC. Before MINUTES_FROM, every attempt counts once. Other sections have details."""
    id: UUID
    span: int = MINUTE
    """How many minutes it covers: MINUTE, QUARTER, HOUR or DAY."""
    queue: str
    task: str
    """OTHER_TASKS: of several tasks."""
    end: AttemptEnd
    count: int
    """How many attempts ended so."""
    wait: bytes = EMPTY
    """A packed Histogram: the seconds between the enqueue and the start of the first attempt."""
    run: bytes = EMPTY
    """A packed Histogram: the seconds between the start and the end of each attempt. From USAGE_FROM on, a packed Usage."""
    sent: int
    """When its writer first sent it, in seconds since 1970 by the store's clock. Young rollups are not folded."""

    @property
    def key(self) -> RollupKey:
        return RollupKey(self.start, self.id)

    @property
    def minute(self) -> int:
        """The first minute, whatever the section."""
        return minute_of(self.start)


class HistoryPage(msgspec.Struct, frozen=True):
    """Rollups in the order of their keys."""

    rollups: list[Rollup]
    next: RollupKey | None
    """Pass as `after` for the next page, also after a short or empty page; None: this was the last."""
    folds: int
    """How often rollups were folded so far. If it changes between two pages, begin again: some may be missing or twice."""


def minute_of(start: int) -> int:
    """The minute of a start, whatever its section."""
    return start % SECTION


def usage_rollup(packed: bytes, *, minute: int, span: int, queue: str, sent: int = 0) -> Rollup:
    """A rollup that carries a packed Usage. Stores keep it as they keep every other one."""
    return Rollup(
        start=USAGE_FROM + minute - minute % span,
        id=uuid4(),
        span=span,
        queue=queue,
        task=OTHER_TASKS,
        end=AttemptEnd.DONE,
        count=1,
        run=packed,
        sent=sent,
    )
