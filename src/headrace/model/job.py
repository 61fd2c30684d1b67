"""Jobs as a producer makes them, as a worker holds them, and as a reader sees them; and ids, which locate a job."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NewType
from uuid import UUID

import msgspec

from headrace.errors import ConfigError
from headrace.model.gate import Edge, GateId, NewGate, Wait
from headrace.model.lane import Lane

# Values that exist once per job on the hot path are msgspec structs, not dataclasses:
# making one costs 0.15 µs instead of 1.5 µs.

JobId = NewType("JobId", UUID)
"""The id of a job: a UUID of version 7, which begins with the time of the enqueue."""
BatchId = NewType("BatchId", UUID)

MAX_BATCH = 65_536
"""Jobs in one enqueue call: `ord` has 16 bits."""

_ORD_BITS = 16
_ORD_MASK = (1 << _ORD_BITS) - 1

Due = timedelta | datetime | None
"""When a job may run: after a time by the store's clock, at a time, or at once (None)."""


_last_tick = [0]
_TOLERATED = 60_000 << 12
"""Ticks by which the clock may be behind the last id, one minute. Beyond it, ids follow the clock back."""


def new_batch() -> BatchId:
    """A fresh UUIDv7 whose low 16 bits are zero: the id of one enqueue call, in order within a process."""
    # 12 bits hold the fraction of the millisecond, so that calls in a row keep their order in a lane.
    tick, last = time.time_ns() * 4096 // 1_000_000, _last_tick[0]
    # Ids stay in order when the clock is set back a little. A larger step means that the clock was wrong before. Ids
    # that continued from that time would lie in the partitions of future days.
    if tick <= last < tick + _TOLERATED:
        tick = last + 1
    _last_tick[0] = tick
    random = int.from_bytes(os.urandom(6), "big")
    high = (tick >> 12 << 16) | 0x7000 | (tick & 0x0FFF)
    low = (0b10 << 62) | ((random & ((1 << 46) - 1)) << _ORD_BITS)
    return BatchId(UUID(int=(high << 64) | low))


def job_id(batch: UUID, ord: int) -> JobId:
    """The id of the job at place `ord` of a batch."""
    return JobId(UUID(int=batch.int | ord) if ord else batch)


def split_id(id: UUID) -> tuple[BatchId, int]:
    """The batch and the place in it, which tell where the job is stored."""
    number = id.int
    return BatchId(UUID(int=number & ~_ORD_MASK)), number & _ORD_MASK


def place_in(batch: UUID, id: UUID) -> int | None:
    """The place of a job in this batch. None: it belongs to another one, or is a gate."""
    place = batch.int ^ id.int
    return place if place <= _ORD_MASK else None


def parse_id(text: str | UUID) -> JobId:
    """A job id from what a user typed, or a ConfigError."""
    if isinstance(text, UUID):
        return JobId(text)
    try:
        return JobId(UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(
            f"{str(text)[:60]!r} is not a job id: it looks like 01890a5d-ac96-774b-bcce-b302099a0001"
        ) from None


class JobState(StrEnum):
    """The seven states a user sees. "Retrying" is SCHEDULED with failures > 0."""

    SCHEDULED = "scheduled"
    """The job waits for its time: for a delay, or for another attempt."""
    READY = "ready"
    """The job can start as soon as a worker has a free slot."""
    RUNNING = "running"
    """A worker runs the job."""
    DONE = "done"
    """The job has succeeded."""
    DEAD = "dead"
    """The job has failed and is not tried again."""
    CANCELLED = "cancelled"
    """The job was cancelled, or has expired before its start."""
    BLOCKED = "blocked"
    """The job waits for other jobs to end, or for an event."""

    @property
    def finished(self) -> bool:
        """Whether a job in this state has ended: it is done, dead or cancelled."""
        return self in FINISHED


FINISHED = frozenset({JobState.DONE, JobState.DEAD, JobState.CANCELLED})


class Key(msgspec.Struct, frozen=True):
    """An idempotency key: one job per (task, key) within `ttl`."""

    name: str
    ttl: timedelta
    digest: bytes
    """Of the arguments: the same key with another digest is a conflict."""


class UniqueLock(msgspec.Struct, frozen=True):
    """At most one job of this name at a time: held by a job for as long as it is in one of `states`."""

    name: str
    """Within the task."""
    states: frozenset[JobState]
    within: timedelta | None = None
    """The longest time after the holder's enqueue. None: as long as the holder is in one of the states."""
    replace: bool = False
    """This job takes the lock over. A waiting holder is cancelled, a running one goes on. False: the holder stays."""


REFERENCE: Final = b"\xc1"
"""The first byte of a result that is a reference to a storage. Neither MessagePack nor JSON begins with it."""


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be enqueued. Share one Lane object between jobs of one lane: runs are found by identity first."""

    task: str
    payload: bytes
    lane: Lane
    due: Due = None
    key: Key | None = None
    options: bytes | None = None
    """The job's overrides of the task's options. The store does not read them (see codec.JobOptions)."""
    unique: UniqueLock | None = None
    wait: Wait | None = None
    """What it waits for before it becomes ready. `due` counts from then on."""


class Batch(msgspec.Struct, frozen=True):
    """One enqueue call, all or nothing. `jobs[i]` gets the id `job_id(id, i)`."""

    id: BatchId
    jobs: list[NewJob]
    gates: tuple[NewGate, ...] = ()
    """Gates to make."""
    edges: tuple[Edge, ...] = ()
    """Members to add: jobs of this batch, stored jobs, gates."""
    seals: tuple[GateId, ...] = ()
    """Gates that get no members after this batch."""

    @property
    def linked(self) -> bool:
        """Whether it has to do with gates at all."""
        return bool(self.gates or self.edges or self.seals) or any(job.wait is not None for job in self.jobs)


class Failure(msgspec.Struct, frozen=True):
    """One attempt that went wrong, as dead letters show it."""

    attempt: int
    """The number of the attempt, from 1."""
    kind: str
    """The exception's qualified name, or `timeout`, `worker_lost`."""
    message: str
    """The text of the exception."""
    traceback: str
    """The traceback as Python prints it."""
    at: datetime
    """When the attempt failed."""
    worker: str = ""
    """The worker that ran the attempt. Empty: unknown."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """One job in a lease: what a worker needs to run it."""

    batch: UUID
    ord: int
    attempt: int
    """The number of this claim, from 1."""
    failures: int
    """Earlier attempts that count against `max_attempts`."""
    crashes: int
    """Earlier worker deaths that count against this job."""
    task: str
    payload: bytes
    options: bytes | None
    queue: str
    priority: int
    tenant: str
    enqueued_at: datetime

    @property
    def id(self) -> JobId:
        return job_id(self.batch, self.ord)


class LogLine(msgspec.Struct, frozen=True):
    """A line that a task wrote about its job."""

    at: datetime
    """When the task wrote the line."""
    text: str
    """The line."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a reader sees it: everything the store has about it, at one moment."""

    id: JobId
    """The id that the handle of the job has, too."""
    task: str
    """The name of its task."""
    queue: str
    """The queue that the job is in."""
    priority: int
    """From -1000 to 1000. A job with a higher number runs first."""
    tenant: str
    """The tenant that the job belongs to. Empty: none."""
    limits: tuple[str, ...]
    """The keys of the limits that the job needs."""
    state: JobState
    """The state at the moment of the read."""
    attempt: int
    """How often a worker has claimed the job."""
    failures: int
    """The attempts that count against `max_attempts`."""
    crashes: int
    """The deaths of workers that count against the job."""
    enqueued_at: datetime
    """When the job was stored, by the store's clock."""
    payload: bytes
    """The encoded arguments."""
    options: bytes | None = None
    """The encoded options of the job that differ from those of its task."""
    run_at: datetime | None = None
    """When the job may start. Set while it is SCHEDULED, and while it is BLOCKED until that time at the latest."""
    note: str | None = None
    """Why it was put off or how it ended, e.g. `max_attempts`, `worker_lost`, a cancel's reason."""
    worker: UUID | None = None
    """The worker that runs it or ran its last attempt. None after the end if that worker never sent a heartbeat."""
    claimed_at: datetime | None = None
    """When a worker claimed the attempt that runs, or the one that ended the job."""
    cancelling: bool = False
    """True: the job is RUNNING, and its worker has been asked to stop it."""
    finished_at: datetime | None = None
    """When the job ended. None: it has not ended."""
    result: bytes | None = None
    """The encoded result. `Handle.result` decodes it."""
    result_expired: bool = False
    """True: the job is DONE and had a result, and its `result_ttl` is over."""
    history: tuple[Failure, ...] = ()
    """Every failure, oldest first. Filled by `get`, left empty by `find`."""
    progress: float | None = None
    """The fraction that its task last reported, in any attempt. Filled by `get`, left empty by `find`."""
    doing: str | None = None
    """The note of the last progress report. Filled by `get`, left empty by `find`."""
    log: tuple[LogLine, ...] = ()
    """The lines that the task has written about the job. Filled by `get`, left empty by `find`."""
    worker_name: str | None = None
    """The worker's host:pid. Filled by `get`, left empty by `find`."""
    waits: tuple[Wait, ...] = ()
    """What the job waits for while it is BLOCKED. Filled by `get`, left empty by `find`."""
