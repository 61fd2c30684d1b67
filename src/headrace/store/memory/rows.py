"""What the memory store keeps: jobs, leases, keys, and how an onlooker sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from headrace.model.gate import Counts, Edge, NewGate, Wait
from headrace.model.job import Claimed, Failure, Job, JobId, JobState, LogLine, NewJob, split_id
from headrace.model.lease import Token, WorkerId
from headrace.model.records import Filter
from headrace.model.step import Step


@dataclass(slots=True, eq=False)
class JobRow:
    """One job, and all that ever changes about it."""

    id: JobId
    new: NewJob
    enqueued_at: datetime
    state: JobState = JobState.READY
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    run_at: datetime | None = None
    note: str | None = None
    lease: LeaseRow | None = None
    cancelling: bool = False
    cancel_reason: str | None = None
    finished_at: datetime | None = None
    ended_by: WorkerId | None = None
    """The worker of the last attempt, and the time of its claim."""
    ended_from: datetime | None = None
    result: bytes | None = None
    result_until: datetime | None = None
    history: list[Failure] = field(default_factory=list[Failure])
    progress: float | None = None
    doing: str | None = None
    log: list[LogLine] = field(default_factory=list[LogLine])
    steps: dict[tuple[str, int], Step] = field(default_factory=dict[tuple[str, int], Step])
    """By name and number, in the order written."""
    waits: tuple[Wait, ...] = ()
    """What it waits for while it is blocked."""

    @property
    def queue(self) -> str:
        return self.new.lane.queue

    def view(self, now: datetime, *, history: bool) -> Job:
        expired = self.result is not None and self.result_until is not None and self.result_until <= now
        return Job(
            id=self.id,
            task=self.new.task,
            queue=self.queue,
            priority=self.new.lane.priority,
            tenant=self.new.lane.tenant,
            limits=self.new.lane.limits,
            state=self.state,
            attempt=self.attempt,
            failures=self.failures,
            crashes=self.crashes,
            enqueued_at=self.enqueued_at,
            payload=self.new.payload,
            options=self.new.options,
            run_at=self.run_at,
            note=self.note,
            worker=self.lease.worker if self.lease else self.ended_by,
            claimed_at=self.lease.claimed_at if self.lease else self.ended_from,
            cancelling=self.cancelling,
            finished_at=self.finished_at,
            result=None if expired else self.result,
            result_expired=expired,
            history=tuple(self.history) if history else (),
            progress=self.progress if history else None,
            doing=self.doing if history else None,
            log=tuple(self.log) if history else (),
            waits=self.waits if history else (),
        )

    def claimed(self) -> Claimed:
        lane, (batch, ord) = self.new.lane, split_id(self.id)
        return Claimed(
            batch=batch,
            ord=ord,
            attempt=self.attempt,
            failures=self.failures,
            crashes=self.crashes,
            task=self.new.task,
            payload=self.new.payload,
            options=self.new.options,
            queue=lane.queue,
            priority=lane.priority,
            tenant=lane.tenant,
            enqueued_at=self.enqueued_at,
        )

    def fits(self, where: Filter) -> bool:
        texts = [self.new.task, self.note or "", *(text for f in self.history for text in (f.kind, f.message))]
        return (
            (not where.states or self.state in where.states)
            and where.queue in {None, self.queue}
            and where.task in {None, self.new.task}
            and where.tenant in {None, self.new.lane.tenant}
            and (where.since is None or self.enqueued_at >= where.since)
            and (where.until is None or self.enqueued_at < where.until)
            and (where.text is None or any(where.text in text for text in texts))
        )


@dataclass(slots=True, eq=False)
class LeaseRow:
    token: Token
    worker: WorkerId
    claimed_at: datetime
    expires_at: datetime
    suspect: bool
    jobs: list[JobRow | None]
    """By position; None where settled."""
    cause: str = "lease expired"

    def open(self) -> Iterator[tuple[int, JobRow]]:
        return ((position, job) for position, job in enumerate(self.jobs) if job is not None)

    def at(self, position: int) -> JobRow | None:
        """The unsettled job at a position."""
        return self.jobs[position] if 0 <= position < len(self.jobs) else None


@dataclass(slots=True)
class KeyRow:
    job: JobId
    digest: bytes
    until: datetime


@dataclass(slots=True)
class Totals:
    enqueued: int = 0
    done: int = 0
    failed: int = 0


@dataclass(slots=True)
class GateRow:
    """A gate: its members, and what they count."""

    new: NewGate
    made_at: datetime
    changed_at: datetime
    sealed: bool
    counts: Counts
    edges: list[Edge] = field(default_factory=list[Edge])
    as_member: Counts = field(default_factory=lambda: Counts(size=1))
    """What it is as a member of other gates, as they have counted it."""
    value: bytes | None = None
    kept_until: datetime | None = None
    """Set by a signal."""
