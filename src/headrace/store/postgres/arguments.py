"""Our values as arguments of the SQL verbs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.model.job import Batch, Failure, JobState, NewJob
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import MAX_LOG, Ask, Band, Presence, Report
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.model.records import LimitRule
from headrace.store.batches import segments

STATES: Final = {JobState.DONE: 1, JobState.DEAD: 2, JobState.CANCELLED: 3}

ENQUEUE_TYPES: Final = (
    "uuid", "text[]", "bytea[]", "bytea[]",
    "int4[]", "text[]", "int2[]", "text[]", "int8[]", "text[]", "timestamptz[]", "interval[]",
    "int4[]", "text[]", "bytea[]", "interval[]",
    "int4[]", "text[]", "text[]", "interval[]", "bool[]", "timestamptz",
)  # fmt: skip
"""Of the arguments of enqueue_batch, for drivers that must be told."""

SETTLE_TYPES: Final = (
    "uuid", "int4[]", "int2[]", "bytea[]", "interval[]", "int4[]", "int4[]", "text[]",
    "timestamptz[]", "interval[]", "bool[]",
    "int4[]", "int4[]", "text[]", "text[]", "text[]", "timestamptz[]", "text[]", "timestamptz",
)  # fmt: skip
"""Of the arguments of settle."""


_MANY_QUEUES: Final = 64
"""More queues than these go to claim as one list: the driver and the server take an array apart name by name."""


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
    return (
        batch.id,
        _same([job.task for job in jobs]),
        [job.payload for job in jobs],
        _column([job.options for job in jobs]),
        [hi for _, hi in runs],
        *_run_args([jobs[lo] for lo, _ in runs]),
        *_key_args(jobs),
        *_lock_args(jobs),
        now,
    )


def keyed(args: tuple[Any, ...]) -> bool:
    """Whether any job of these `enqueue_args` has a key (k_ord) or a unique lock (u_ord)."""
    return args[12] is not None or args[16] is not None


def _run_args(heads: Sequence[NewJob]) -> tuple[Any, ...]:
    """By run: queue, priority, tenant, lane, limits, run_at, delay. What says nothing is left out."""
    lanes = [head.lane for head in heads]
    limits = _column(["\n".join(lane.limits) or None for lane in lanes])
    dues = _column([head.due for head in heads])
    return (
        _same([lane.queue for lane in lanes]),
        _same([lane.priority for lane in lanes]),
        [lane.tenant for lane in lanes],
        limits and [lane.id for lane in lanes],
        limits,
        dues and [due if isinstance(due, datetime) else None for due in dues],
        dues and [due if isinstance(due, timedelta) else None for due in dues],
    )


def _same(column: list[Any]) -> list[Any]:
    """One element where all are the same."""
    return column[:1] if column.count(column[0]) == len(column) else column


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


def _lock_args(jobs: Sequence[NewJob]) -> tuple[Any, Any, Any, Any, Any]:
    unique = [(ord, job.unique) for ord, job in enumerate(jobs) if job.unique is not None]
    if not unique:
        return None, None, None, None, None
    return (
        [ord for ord, _ in unique],
        [text(lock.name) for _, lock in unique],
        [",".join(lock.states) for _, lock in unique],
        [lock.within for _, lock in unique],
        [lock.replace for _, lock in unique],
    )


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
        _column([_state(s) for s in told]),
        _column([s.result if isinstance(s, Finish) else None for s in told]),
        _common(_column([s.result_ttl if isinstance(s, Finish) else None for s in told])),
        _column([s.failures for s in told]),
        _column([s.crashes for s in told]),
        _column([text(s.note) if s.note is not None else None for s in told]),
        _column([s.due if isinstance(s, Again) and isinstance(s.due, datetime) else None for s in told]),
        _column([s.due if isinstance(s, Again) and isinstance(s.due, timedelta) else None for s in told]),
        _column([s.suspect or None if isinstance(s, Again) else None for s in told]),
        *_failure_args(failed),
        now,
    )


def _state(settlement: Settlement) -> int:
    return STATES[settlement.state] if isinstance(settlement, Finish) else 0


def _column(column: list[Any]) -> list[Any] | None:
    """A column, or nothing when it says nothing."""
    return column if column.count(None) < len(column) else None


def _common(column: list[Any] | None) -> list[Any] | None:
    """One element where all are the same; nothing stays nothing."""
    return None if column is None else _same(column)


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


# ── the other verbs ──────────────────────────────────────────────────────────


def ask_args(ask: Ask, limit: int) -> tuple[Any, ...]:
    """The arguments of claim that say what is asked for."""
    bands = ask.bands
    if bands and not ask.only_bands:
        bands = (*bands, Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, limit))
    columns: tuple[Any, ...] = (None,) * 4
    if bands:
        columns = (
            [band.lowest for band in bands],
            [band.highest for band in bands],
            [band.share for band in bands],
            [",".join(band.queues) or None for band in bands],
        )
    weights = msgspec.json.encode(ask.weights).decode() if ask.weights else None
    queues = list(ask.queues) if len(ask.queues) <= _MANY_QUEUES else [f",{','.join(ask.queues)},"]
    return (queues, limit, ask.token, ask.worker, ask.ttl, ask.tenant, weights, *columns)


def limit_args(rule: LimitRule | None) -> tuple[Any, ...]:
    """The arguments of write_limit that say what the rule is: (drop, concurrency, rate, burst, closed_until, state)."""
    if rule is None:
        return (True, None, None, None, None, None)
    return (False, rule.concurrency, rule.rate, rule.burst, rule.closed_until, rule.state)


def report_args(token: UUID, reports: Sequence[tuple[int, Report]]) -> tuple[Any, ...]:
    """The arguments of report; what is said of one position several times is said once."""
    merged: dict[int, Report] = {}
    for position, new in reports:
        old = merged.get(position, Report())
        merged[position] = Report(
            progress=old.progress if new.progress is None else new.progress,
            note=old.note if new.note is None else text(new.note),
            lines=(*old.lines, *new.lines)[-MAX_LOG:],
        )
    lines = [(index, line) for index, said in enumerate(merged.values(), start=1) for line in said.lines]
    return (
        token,
        list(merged),
        [said.progress for said in merged.values()],
        [said.note for said in merged.values()],
        [index for index, _ in lines],
        [line.at for _, line in lines],
        [text(line.text) for _, line in lines],
        MAX_LOG,
    )


def presence_args(presence: Presence) -> tuple[Any, ...]:
    """Of present, without the time."""
    return (
        presence.id,
        text(presence.name),
        list(presence.queues),
        presence.slots,
        presence.running,
        text(presence.version),
        presence.started_at,
        list(presence.tasks),
        [text(each) for each in presence.hindered],
    )
