"""Rows: the answers of the SQL functions as values of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from headrace.errors import GroupOver, IdempotencyConflict
from headrace.model.gate import Counts, Gate, GateId, Needs, Wait
from headrace.model.job import Batch, Claimed, Failure, Job, JobId, JobState, LogLine, job_id
from headrace.model.lane import Ahead, Blocked
from headrace.model.lease import Presence, WorkerId
from headrace.model.records import Ending, Enqueued, LimitRule, QueueStats

STATES: Final = {JobState.DONE: 1, JobState.DEAD: 2, JobState.CANCELLED: 3}
"""The numbers of endings in the tables."""
NEEDS: Final = {Needs.DONE: 1, Needs.ENDED: 2, Needs.FAILED: 3}
"""The numbers of needs in the tables."""
_NEEDS: Final = {number: needs for needs, number in NEEDS.items()}
_OVER: Final = 4
"""The column of enqueue_linked with a gate that takes no members."""
_ENDINGS: Final = {number: state for state, number in STATES.items()}
NEVER: Final = datetime.max.replace(tzinfo=UTC)


def enqueued(batch: Batch, answer: Sequence[Any]) -> Enqueued:
    """The answer of enqueue_batch: (existing_ord, existing_id, conflict_ord, conflict_id); of enqueue_linked also a gate."""
    if len(answer) > _OVER and answer[_OVER] is not None:
        raise GroupOver(_id(answer[_OVER]))
    places, ids = answer[0], answer[1]
    conflict: int | None = answer[2]
    if conflict is not None:
        refused_job = batch.jobs[conflict]
        name = refused_job.key.name if refused_job.key else ""
        raise IdempotencyConflict(refused_job.task, name, _id(answer[3]))
    if not places:
        return Enqueued({})
    existing = {place: JobId(_id(id)) for place, id in zip(places, ids, strict=True)}
    # A key inside the batch may name a job that was not stored. Then another job stands for it.
    makers: dict[tuple[str, str], int] = {}
    for place, job in enumerate(batch.jobs):
        maker = makers.setdefault((job.task, job.key.name), place) if job.key is not None else place
        if maker != place and maker in existing:
            existing[place] = existing[maker]
    return Enqueued(existing)


def _id(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def refused(sent: Sequence[tuple[int, object]], answer: Sequence[int] | None) -> frozenset[int]:
    """The answer of settle and report. None: the lease is lost, and with it every position that was sent."""
    return frozenset(position for position, _ in sent) if answer is None else frozenset(answer)


def claimed(rows: Sequence[Any]) -> tuple[list[Claimed], int]:
    """The jobs in the rows of claim, and the bytes of their large payloads.

    The first row holds the ranges. It and some that follow hold the jobs in their order. Rows of large payloads, which are
    missing in the others, come last.
    """
    first, large = rows[0], 0
    payloads: Iterable[bytes] = chain.from_iterable(row["payloads"] or () for row in rows)
    if rows[-1]["large"] is not None:
        apart = [row["large"] for row in rows if row["large"] is not None]
        rows, large = [row for row in rows if row["tasks"] is not None], sum(map(len, apart))
        rest = iter(apart)
        payloads = chain.from_iterable(
            [next(rest) if payload is None else payload for payload in row["payloads"]] for row in rows
        )
    begins, ends = first["r_lo"], first["r_hi"]
    ords, spread = _expanded(begins, ends or begins)
    column = chain.from_iterable
    jobs = list(
        map(
            Claimed,
            spread(first["r_batch"]),
            ords,
            spread(first["r_attempt"] or (1,)),
            spread(first["r_failures"] or (0,)),
            spread(first["r_crashes"] or (0,)),
            column(row["tasks"] for row in rows),
            payloads,
            column(_alike(row["options"], len(row["tasks"])) for row in rows),
            spread(first["r_queue"]),
            spread(first["r_priority"]),
            spread(first["r_tenant"]),
            spread(list(column(row["r_at"] or () for row in rows))),
        )
    )
    return jobs, large


def _alike(options: Sequence[bytes | None] | None, count: int) -> Iterable[bytes | None]:
    """The options of so many jobs. One object for equal ones lets the worker read them once."""
    first = options[0] if options else None
    return repeat(first, count) if options is None or options.count(first) == count else options


Spread = Callable[[Sequence[Any]], Iterable[Any]]
"""A column by range as one by job. One element stands for all."""


def _expanded(begins: Sequence[int], ends: Sequence[int]) -> tuple[Sequence[int], Spread]:
    """The places of all jobs in some ranges, and how to spread what is said by range over them."""
    if len(begins) == 1:
        return range(begins[0], ends[0] + 1), lambda column: repeat(column[0])
    ords: list[int] = []
    ranges: list[int] = []
    for number, (lo, hi) in enumerate(zip(begins, ends, strict=True)):
        if lo == hi:
            ords.append(lo)
            ranges.append(number)
        else:
            ords += range(lo, hi + 1)
            ranges += [number] * (hi - lo + 1)
    pick = itemgetter(*ranges)
    return ords, lambda column: pick(column) if len(column) > 1 else repeat(column[0])


def held(rows: Sequence[Any]) -> list[tuple[int, Claimed]]:
    """(position, job) from the rows of held."""
    return [
        (
            row["position"],
            Claimed(
                row["batch"], row["ord"], row["attempt"], row["failures"], row["crashes"], row["task"], row["payload"],
                row["options"], row["queue"], row["priority"], row["tenant"], row["enqueued_at"],
            ),
        )
        for row in rows
    ]  # fmt: skip


def job(
    row: Any,
    now: datetime,
    history: tuple[Failure, ...] = (),
    report: Any = None,
    *,
    waits: tuple[Wait, ...] = (),
    whole: bool = False,
) -> Job:
    """A row of job_now. `whole`: as `get` shows it."""
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
        progress=report and report["progress"],
        doing=report and report["note"],
        worker_name=row["worker_name"] if whole else None,
        log=tuple(LogLine(at, line) for at, line in zip(report["log_at"], report["log_text"], strict=True))
        if report
        else (),
        waits=waits,
    )


def wait(row: Any) -> Wait:
    return Wait(row["gate"], _NEEDS[row["needs"]])


def gate(row: Any) -> Gate:
    """A row of gate_now."""
    return Gate(
        id=GateId(row["id"]),
        queue=row["queue"],
        label=row["label"],
        tenant=row["tenant"],
        sealed=row["sealed"],
        counts=Counts(row["size"], row["done"], row["dead"], row["cancelled"]),
        signalled=row["signalled"],
        value=row["value"],
        made_at=row["made_at"],
        changed_at=row["changed_at"],
    )


def rule(row: Any) -> LimitRule:
    return LimitRule(
        concurrency=row["concurrency"],
        rate=row["rate"],
        burst=row["burst"],
        closed_until=row["closed_until"],
        state=row["state"],
        version=row["version"],
    )


def ending(row: Any) -> Ending:
    state = _ENDINGS[row["state"]]
    id = job_id(row["batch"], row["ord"])
    return Ending(id, state, row["finished_at"], row["queue"], row["task"], row["tenant"])


def ahead(row: Any, limit: int, blocked: Sequence[Any]) -> Ahead:
    return Ahead(
        lane=row["lane"],
        higher=row["higher"],
        limit=limit,
        suspect=row["suspect"],
        paused_by=row["paused_by"],
        paused_since=row["paused_since"],
        paused_until=row["paused_until"],
        tenant_paused_by=row["tenant_by"],
        tenant_paused_since=row["tenant_since"],
        tenant_paused_until=row["tenant_until"],
        blocked=tuple(
            Blocked(
                key=limited["key"],
                concurrency=limited["concurrency"],
                held=limited["held"],
                by=tuple(limited["holders"] or ()),
                opens_at=limited["opens_at"],
                never=limited["never"],
            )
            for limited in blocked
        ),
    )


def failure(row: Any) -> Failure:
    return Failure(row["attempt"], row["kind"], row["message"], row["traceback"], row["at"], row["worker"])


def figures(row: Any) -> QueueStats:
    return QueueStats(
        queue=row["queue"],
        ready=row["ready"],
        scheduled=row["scheduled"],
        running=row["running"],
        blocked=row["blocked"],
        dead=row["dead"],
        done_total=row["done"],
        failed_total=row["failed"],
        enqueued_total=row["enqueued"],
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
        hindered=tuple(row["hindered"]),
        memory=row["memory"],
        seen_at=row["seen_at"],
    )
