"""A call as one row of the outbox: its jobs as bytes, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from headrace.model.gate import Edge, GateId, NewGate, Wait
from headrace.model.job import Batch, BatchId, Due, JobState, Key, NewJob, UniqueLock
from headrace.model.lane import Lane

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """A job in the outbox. Times are in microseconds. A delay counts from the time of writing."""

    task: str
    payload: bytes
    queue: str
    priority: int
    tenant: str
    limits: tuple[str, ...]
    options: bytes | None
    delay: int | None
    at: int | None
    key: tuple[str, int, bytes] | None
    unique: tuple[str, tuple[JobState, ...], int | None, bool] | None = None
    wait: Wait | None = None


class _Linked(msgspec.Struct, frozen=True):
    """A call that has to do with gates. Other calls are only the list of their jobs."""

    jobs: list[_Kept]
    gates: tuple[NewGate, ...] = ()
    edges: tuple[Edge, ...] = ()
    seals: tuple[GateId, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[_Kept] | _Linked)


def written(batch: Batch) -> tuple[str, bytes]:
    jobs = [_kept(job) for job in batch.jobs]
    return batch.id.hex, _encode(_Linked(jobs, batch.gates, batch.edges, batch.seals) if batch.linked else jobs)


def _kept(job: NewJob) -> _Kept:
    lane, due, key = job.lane, job.due, job.key
    return _Kept(
        job.task,
        job.payload,
        lane.queue,
        lane.priority,
        lane.tenant,
        lane.limits,
        job.options,
        due // _MICROSECOND if isinstance(due, timedelta) else None,
        (due - _EPOCH) // _MICROSECOND if isinstance(due, datetime) else None,
        (key.name, key.ttl // _MICROSECOND, key.digest) if key else None,
        _kept_lock(job.unique),
        job.wait,
    )


def _kept_lock(lock: UniqueLock | None) -> tuple[str, tuple[JobState, ...], int | None, bool] | None:
    if lock is None:
        return None
    within = None if lock.within is None else lock.within // _MICROSECOND
    return lock.name, tuple(sorted(lock.states)), within, lock.replace


def _lock(kept: _Kept) -> UniqueLock | None:
    if kept.unique is None:
        return None
    name, states, within, replace = kept.unique
    return UniqueLock(
        name, frozenset(states), None if within is None else timedelta(microseconds=within), replace=replace
    )


def read(hex: str, jobs: bytes, waited: float) -> Batch:
    lanes: dict[tuple[str, int, str, tuple[str, ...]], Lane] = {}
    new_jobs: list[NewJob] = []
    decoded = _decoder.decode(jobs)
    call = decoded if isinstance(decoded, _Linked) else _Linked(decoded)
    for kept in call.jobs:
        name = (kept.queue, kept.priority, kept.tenant, kept.limits)
        lane = lanes.setdefault(name, Lane(*name))
        key = Key(kept.key[0], timedelta(microseconds=kept.key[1]), kept.key[2]) if kept.key else None
        due = _due(kept, waited)
        new_jobs.append(NewJob(kept.task, kept.payload, lane, due, key, kept.options, _lock(kept), kept.wait))
    return Batch(BatchId(UUID(hex=hex)), new_jobs, call.gates, call.edges, call.seals)


def _due(kept: _Kept, waited: float) -> Due:
    """What is left of a delay after the wait in the table, or the time itself."""
    if kept.at is not None:
        return _EPOCH + timedelta(microseconds=kept.at)
    if kept.delay is None:
        return None
    if kept.wait is not None:
        return timedelta(microseconds=kept.delay)  # It counts from the end of what the job waits for.
    return max(timedelta(microseconds=kept.delay) - timedelta(seconds=max(0.0, waited)), timedelta(0))
