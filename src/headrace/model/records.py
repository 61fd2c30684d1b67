"""The values that the verbs of the contract take and return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

import msgspec

from headrace.model.job import Job, JobId, JobState

Progress = Callable[[int, int, str], None]
"""(done, total, what): called during long work."""


class Enqueued(msgspec.Struct, frozen=True):
    """The answer to enqueue."""

    existing: Mapping[int, JobId]
    """ord → the existing job with the same idempotency key or unique lock. The jobs at these places were not stored."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """The answer to promote."""

    moved: int
    next_due: timedelta | None
    """Time until the earliest scheduled job, zero if it is due already. None: no job is scheduled."""
    expired: bool = field(default=False, compare=False)
    """There may be expired leases; `reap` finds out."""
    next_expiry: timedelta | None = field(default=None, compare=False)
    """Time until the first lease may expire, zero if it may have expired already. None: no lease, or the store does not tell."""

    @property
    def next(self) -> timedelta | None:
        """Time until the next call may find something. None: none is known."""
        return min((wait for wait in (self.next_due, self.next_expiry) if wait is not None), default=None)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long finished jobs are kept."""

    done: timedelta = timedelta(days=7)
    """For done and cancelled jobs."""
    dead: timedelta = timedelta(days=14)
    """Not by `prune`: see `expired_dead`."""
    dead_by_queue: Mapping[str, timedelta] = msgspec.field(default_factory=dict[str, timedelta])
    """queue → how long its dead jobs are kept, if that is not `dead`."""

    def dead_in(self, queue: str) -> timedelta:
        """How long this queue's dead jobs are kept."""
        return self.dead_by_queue.get(queue, self.dead)


class Pruned(msgspec.Struct, frozen=True):
    """The answer to prune."""

    jobs: int
    more: bool
    """There is more to do: call again."""


class Record(msgspec.Struct, frozen=True):
    """A small named value that a store keeps for another component and does not read."""

    version: int
    """The version of this value. It is never used again, not even by a later record of the same name."""
    value: bytes


class LimitRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit key allows right now. `task/limit.py` declares what a limit should allow."""

    concurrency: int | None = None
    """Units held at once."""
    rate: float | None = None
    """Units per second."""
    burst: float = 1.0
    """Units that may go at once, if there is a rate."""
    closed_until: datetime | None = None
    """No job starts before this time, and after it one job at a time, whatever its cost. None: the limit is open."""
    state: bytes = b""
    """The owner's data, which the store does not read."""
    version: int = 0
    """Filled by `limits`."""


PauseKind = Literal["queue", "tenant", "task"]
"""What can be paused. A store holds back queues and tenants itself. It only records paused tasks, for workers."""


class Pause(msgspec.Struct, frozen=True):
    """What is paused, by which operator, since when and until when."""

    kind: PauseKind
    """What is paused: `queue`, `tenant` or `task`."""
    name: str
    """The name of the queue, the tenant or the task."""
    by: str
    """The operator that paused it."""
    since: datetime
    """When the pause began."""
    until: datetime | None = None
    """None: until it is resumed."""


class Ending(msgspec.Struct, frozen=True):
    """A job that has ended."""

    id: JobId
    state: JobState
    at: datetime
    queue: str
    task: str
    tenant: str


class CancelAnswer(StrEnum):
    """What became of the request to cancel one job."""

    CANCELLED = "cancelled"
    """It was waiting, and will never run."""
    ASKED = "asked"
    """It is running. Its worker learns it with the next heartbeat."""
    FINISHED = "finished"
    """Too late, nothing changed."""
    UNKNOWN = "unknown"
    """No such job."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to find. All given conditions must hold."""

    states: frozenset[JobState] = frozenset()
    """Empty: all."""
    queue: str | None = None
    task: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    """Enqueued at or after."""
    until: datetime | None = None
    """Enqueued before."""
    text: str | None = None
    """Literal, case-sensitive: in the task's name, the note, or a failure's kind or message."""


class Page(msgspec.Struct, frozen=True):
    """Jobs, newest id first."""

    jobs: list[Job]
    """The jobs of this page."""
    next: JobId | None
    """Pass as `before` for the next page, also after a short or empty page; None: this was the last."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one queue. The counts are exact except for calls under way."""

    queue: str
    """The name of the queue."""
    ready: int = 0
    """Jobs that can start as soon as a worker has a free slot."""
    scheduled: int = 0
    """Includes jobs that wait for a retry."""
    running: int = 0
    """Jobs that workers run now."""
    blocked: int = 0
    """Jobs that wait for other jobs or for an event."""
    dead: int = 0
    """Dead letters kept right now."""
    done_total: int = 0
    """Ever; only grows. Rates are differences."""
    failed_total: int = 0
    """Settlements that carried a failure, ever; only grows."""
    enqueued_total: int = 0
    """Jobs that were ever enqueued; only grows."""
    oldest_ready: timedelta | None = None
    """Age of the longest waiting ready job, by its enqueue time."""
    paused: bool = False
    """Whether the queue is paused."""
    oldest_at_least: bool = False
    """The queue has too many lanes, so the store did not read all of them for `oldest_ready`. A job may be older."""


class Stats(msgspec.Struct, frozen=True):
    """Every queue with jobs, totals or a pause, by name."""

    queues: list[QueueStats] = msgspec.field(default_factory=list[QueueStats])
    """The figures of each queue."""


class Finding(msgspec.Struct, frozen=True):
    """One finding of `headrace doctor` about a store."""

    level: Literal["ok", "warning", "error"]
    about: str
    message: str
    """What it is and, if it is not ok, what to do."""
