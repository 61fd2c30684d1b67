"""Rows: our values as arguments of the SQL verbs, and their answers as our values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from headrace.errors import IdempotencyConflict
from headrace.job import Batch, Claimed, Failure, Job, JobId, JobState, NewJob, job_id
from headrace.lease import Presence, WorkerId
from headrace.outcome import DONE, Again, Finish, Settlement
from headrace.store.contract import Enqueued, QueueStats, segments

STATES: Final = {JobState.DONE: 1, JobState.DEAD: 2, JobState.CANCELLED: 3}

ENQUEUE_TYPES: Final = (
    "uuid", "text[]", "bytea[]", "bytea[]",
    "int4[]", "text[]", "int2[]", "text[]", "int8[]", "text[]", "timestamptz[]", "interval[]",
    "int4[]", "text[]", "bytea[]", "interval[]", "timestamptz",
)  # fmt: skip
"""Of the arguments of enqueue_batch, for drivers that must be told."""

SETTLE_TYPES: Final = (
    "uuid", "int4[]", "int2[]", "bytea[]", "interval[]", "int4[]", "int4[]", "text[]",
    "timestamptz[]", "interval[]", "bool[]",
    "int4[]", "int4[]", "text[]", "text[]", "text[]", "timestamptz[]", "text[]", "timestamptz",
)  # fmt: skip
"""Of the arguments of settle."""


def text(value: str) -> str:
    """What PostgreSQL can hold: no NUL, no lone surrogates."""
    if value.isascii():
        return value.replace("\0", "\\0") if "\0" in value else value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


# ── enqueue ──────────────────────────────────────────────────────────────────


def enqueue_args(batch: Batch, now: datetime | None) -> tuple[Any, ...]:
    """The arguments of enqueue_batch."""
    jobs = batch.jobs
    runs = segments(batch)
    heads = [jobs[lo] for lo, _ in runs]
    task = jobs[0].task
    same_task = all(job.task is task or job.task == task for job in jobs)
    return (
        batch.id,
        [task] if same_task else [job.task for job in jobs],
        [job.payload for job in jobs],
        [job.options for job in jobs] if any(job.options is not None for job in jobs) else None,
        [hi for _, hi in runs],
        [head.lane.queue for head in heads],
        [head.lane.priority for head in heads],
        [head.lane.tenant for head in heads],
        [head.lane.id for head in heads],
        ["\n".join(head.lane.limits) or None for head in heads],
        [head.due if isinstance(head.due, datetime) else None for head in heads],
        [head.due if isinstance(head.due, timedelta) else None for head in heads],
        *_key_args(jobs),
        now,
    )


def _key_args(jobs: Sequence[NewJob]) -> tuple[Any, Any, Any, Any]:
    keyed = [(ord, job.key) for ord, job in enumerate(jobs) if job.key is not None]
    if not keyed:
        return None, None, None, None
    return (
        [ord for ord, _ in keyed],
        [text(key.name) for _, key in keyed],
        [key.digest for _, key in keyed],
        [key.ttl for _, key in keyed],
    )


def enqueued(batch: Batch, answer: Sequence[Any]) -> Enqueued:
    """The answer of enqueue_batch: (existing_ord, existing_id, conflict_ord, conflict_id)."""
    places, ids = answer[0], answer[1]
    conflict: int | None = answer[2]
    if conflict is not None:
        refused_job = batch.jobs[conflict]
        name = refused_job.key.name if refused_job.key else ""
        raise IdempotencyConflict(refused_job.task, name, _id(answer[3]))
    if not places:
        return Enqueued({})
    return Enqueued({place: JobId(_id(id)) for place, id in zip(places, ids, strict=True)})


def _id(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def queues_of(batch: Batch) -> set[str]:
    return {job.lane.queue for job in batch.jobs}


# ── settle ───────────────────────────────────────────────────────────────────


def settle_args(
    token: UUID, settlements: Sequence[tuple[int, Settlement]], size: int | None, now: datetime | None
) -> tuple[Any, ...]:
    """The arguments of settle. `size`: how many jobs the lease has, when known: a whole lease is said in a word."""
    if all(settlement is DONE for _, settlement in settlements):
        positions = [position for position, _ in settlements]
        whole = size is not None and len(positions) == size and set(positions) == set(range(size))
        return (token, None if whole else positions, *[None] * 16, now)
    told = [settlement for _, settlement in settlements]
    failed = [(index, s.failure) for index, s in enumerate(told, start=1) if s.failure is not None]
    return (
        token,
        [position for position, _ in settlements],
        _column(_state(s) for s in told),
        _column(s.result if isinstance(s, Finish) else None for s in told),
        _common(_column(s.result_ttl if isinstance(s, Finish) else None for s in told)),
        _column(s.failures for s in told),
        _column(s.crashes for s in told),
        _column(text(s.note) if s.note is not None else None for s in told),
        _column(s.due if isinstance(s, Again) and isinstance(s.due, datetime) else None for s in told),
        _column(s.due if isinstance(s, Again) and isinstance(s.due, timedelta) else None for s in told),
        _column(s.suspect or None if isinstance(s, Again) else None for s in told),
        *_failure_args(failed),
        now,
    )


def _state(settlement: Settlement) -> int:
    return STATES[settlement.state] if isinstance(settlement, Finish) else 0


def _column(values: Iterable[Any]) -> list[Any] | None:
    """A column, or nothing when it says nothing."""
    column = list(values)
    return column if any(value is not None for value in column) else None


def _common(column: list[Any] | None) -> list[Any] | None:
    """One element where all are the same."""
    return column[:1] if column and all(value == column[0] for value in column) else column


def _failure_args(failed: Sequence[tuple[int, Failure]]) -> tuple[Any, ...]:
    if not failed:
        return (None,) * 7
    return (
        [index for index, _ in failed],
        [f.attempt for _, f in failed],
        [text(f.kind) for _, f in failed],
        [text(f.message) for _, f in failed],
        [text(f.traceback) for _, f in failed],
        [f.at for _, f in failed],
        [text(f.worker) for _, f in failed],
    )


def refused(settlements: Sequence[tuple[int, Settlement]], answer: Sequence[int] | None) -> frozenset[int]:
    """The answer of settle: None is a lost lease."""
    return frozenset(position for position, _ in settlements) if answer is None else frozenset(answer)


# ── what comes back ──────────────────────────────────────────────────────────


def claimed(rows: Sequence[Any]) -> list[Claimed]:
    """The jobs in rows of claim or held, in the order of their positions."""
    jobs: list[Claimed] = []
    for row in rows:
        queue, priority, tenant, _, _, batch, ord, attempt, failures, crashes, _, at, tasks, payloads, options, *_ = row
        if options is None:
            jobs.extend(
                [
                    Claimed(batch, place, attempt, failures, crashes, task, payload, None, queue, priority, tenant, at)
                    for place, (task, payload) in enumerate(zip(tasks, payloads, strict=True), ord)
                ]
            )
        else:
            jobs.extend(
                Claimed(batch, place, attempt, failures, crashes, task, payload, option, queue, priority, tenant, at)
                for place, (task, payload, option) in enumerate(zip(tasks, payloads, options, strict=True), ord)
            )
    return jobs


def job(row: Any, now: datetime, history: tuple[Failure, ...] = ()) -> Job:
    """A row of job_now."""
    until, result = row["result_until"], row["result"]
    expired = result is not None and until is not None and until <= now
    return Job(
        id=job_id(row["batch"], row["ord"]),
        task=row["task"],
        queue=row["queue"],
        priority=row["priority"],
        tenant=row["tenant"],
        limits=tuple(row["limits"] or ()),
        state=JobState(row["state"]),
        attempt=row["attempt"] or 0,
        failures=row["failures"],
        crashes=row["crashes"],
        enqueued_at=row["enqueued_at"],
        payload=row["payload"],
        options=row["options"],
        run_at=row["run_at"],
        note=row["note"],
        worker=row["worker"],
        claimed_at=row["claimed_at"],
        cancelling=row["cancelling"],
        finished_at=row["finished_at"],
        result=None if expired else result,
        result_expired=expired,
        history=history,
    )


def failure(row: Any) -> Failure:
    return Failure(row["attempt"], row["kind"], row["message"], row["traceback"], row["at"], row["worker"])


def figures(row: Any) -> QueueStats:
    return QueueStats(
        queue=row["queue"],
        ready=row["ready"],
        scheduled=row["scheduled"],
        running=row["running"],
        dead=row["dead"],
        done_total=row["done"],
        failed_total=row["failed"],
        enqueued_total=row["enqueued"],
        oldest_ready=row["oldest_ready"],
        paused=row["paused"],
    )


def presence(row: Any) -> Presence:
    return Presence(
        id=WorkerId(row["id"]),
        name=row["name"],
        queues=tuple(row["queues"]),
        slots=row["slots"],
        running=row["running"],
        version=row["version"],
        started_at=row["started_at"],
        tasks=tuple(row["tasks"]),
        seen_at=row["seen_at"],
    )
