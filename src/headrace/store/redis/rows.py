"""Jobs, endings, leases and orphans, made of the rows that the scripts in `lua/` answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from struct import Struct
from uuid import UUID

from msgspec.structs import replace

from headrace.model.gate import Wait
from headrace.model.job import Claimed, Failure, Job, JobId, JobState
from headrace.model.lease import Lease, Orphan, Token, WorkerId
from headrace.model.records import Ending
from headrace.store.redis.arguments import NEEDS
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.element import (
    Decoder,
    claimed_of,
    from_us,
    header_of,
    lane_parts,
    parts_of,
    runs_of,
    task_of,
)
from headrace.store.redis.records import RESULT, failures_of, opened, reports_of

_STEP = Struct(">dH")
_PAIR = Struct(">HH")
_ENDED = Struct(">cddI")
_NEEDS = {letter.encode(): needs for needs, letter in NEEDS.items()}
_decoder = Decoder()
_STATES = {b"d": JobState.DEAD, b"c": JobState.CANCELLED, b"o": JobState.DONE}


def job_of(row: list[bytes], queue: str, now_us: int) -> Job:
    """A job from an answer of `get.lua`."""
    job = _bare_job_of(row, queue, now_us)
    return replace(job, **reports_of(row[-1])) if row[-1] else job


def _bare_job_of(row: list[bytes], queue: str, now_us: int) -> Job:
    kind, what = row[0], row[1]
    history = failures_of(row[2])
    if kind == b"u":
        lane, note, element = opened(what)
        job = _job(element, queue, lane, 0, history, state=JobState.BLOCKED, note=note, run_at=_time(row[3]))
        return replace(job, waits=_waits(row[4]))
    if kind == b"c":
        job = _job(what, queue, row[3].decode(), 0, history, state=JobState.BLOCKED)
        return replace(job, waits=_waits(row[4]))
    if kind in {b"s", b"b"}:
        lane, note, element = opened(what)
        run_at = from_us(float(row[3])) if kind == b"s" else None
        state = JobState.SCHEDULED if kind == b"s" else JobState.READY
        return _job(element, queue, lane, 0, history, state=state, note=note, run_at=run_at)
    if kind == b"k":
        return _ended(what, queue, now_us, history)
    lane = row[3].decode()
    if kind == b"w":
        return _job(what, queue, lane, 0, history, state=JobState.READY)
    if kind == b"r":
        header = header_of(row[4])
        return _job(
            what,
            queue,
            lane,
            1,
            history,
            state=JobState.RUNNING,
            worker=UUID(hex=str(header[1])),
            claimed_at=from_us(float(header[2])),
            cancelling=bool(row[5]),
        )
    finished = int(row[4])
    result, expired = _result(row[5], finished, now_us)
    header = header_of(row[6])
    return _job(
        what,
        queue,
        lane,
        1,
        history,
        state=JobState.DONE,
        worker=UUID(hex=str(header[1])),
        claimed_at=from_us(float(header[2])),
        finished_at=from_us(finished),
        result=result,
        result_expired=expired,
    )


def _time(us: bytes) -> datetime | None:
    return from_us(float(us)) if us else None


def _waits(words: bytes) -> tuple[Wait, ...]:
    """What a blocked job waits for: 16 bytes and the letter of a need each."""
    return tuple(
        Wait(UUID(bytes=words[at : at + 16]), _NEEDS[words[at + 16 : at + 17]]) for at in range(0, len(words), 17)
    )


def ids_of_runs(runs: Iterable[bytes]) -> Iterator[bytes]:
    """The ids of jobs in closed lanes. A run is its first id and the place of the last one."""
    for run in runs:
        first, last = _PAIR.unpack_from(run, 14)
        yield from (run[:14] + ord.to_bytes(2, "big") for ord in range(first, last + 1))


def _result(record: bytes, finished: int, now_us: int) -> tuple[bytes | None, bool]:
    if not record:
        return None, False
    (ttl,) = RESULT.unpack_from(record)
    if ttl >= 0 and finished + ttl <= now_us:
        return None, True
    return record[RESULT.size :], False


def _ended(record: bytes, queue: str, now_us: int, history: tuple[Failure, ...]) -> Job:
    state, finished, ttl, length = _ENDED.unpack_from(record)
    at = _ENDED.size + max(0, length - 1)
    result, expired = None, False
    if length:
        result, expired = _result(RESULT.pack(ttl) + record[_ENDED.size : at], int(finished), now_us)
    worker, claimed_at = None, None
    if record[at : at + 1] == b"\1":
        (claimed,) = RESULT.unpack_from(record, at + 1)
        claimed_at, worker = from_us(claimed), UUID(hex=record[at + 9 : at + 41].decode())
        at += 40
    lane, note, element = opened(record[at + 1 :])
    return _job(
        element,
        queue,
        lane,
        0,
        history,
        state=_STATES[state],
        note=note,
        worker=worker,
        claimed_at=claimed_at,
        finished_at=from_us(finished),
        result=result,
        result_expired=expired,
    )


def ending_of(row: list[bytes], queue: str) -> Ending:
    """A job that ended, from an answer of `ended.lua`."""
    at, state, lane, element = row
    _, tenant = lane_parts(lane.decode())
    return Ending(JobId(UUID(bytes=element[:16])), _STATES[state], from_us(int(at)), queue, task_of(element), tenant)


def _job(
    element: bytes,
    queue: str,
    lane: str,
    attempts: int,
    history: tuple[Failure, ...],
    *,
    state: JobState,
    note: str | None = None,
    run_at: datetime | None = None,
    worker: UUID | None = None,
    claimed_at: datetime | None = None,
    cancelling: bool = False,
    finished_at: datetime | None = None,
    result: bytes | None = None,
    result_expired: bool = False,
) -> Job:
    parts = parts_of(element)
    priority, tenant = lane_parts(lane)
    return Job(
        id=JobId(UUID(bytes=element[:16])),
        task=parts.task,
        queue=queue,
        priority=priority,
        tenant=tenant,
        limits=parts.limits,
        state=state,
        attempt=parts.attempts + attempts,
        failures=parts.failures,
        crashes=parts.crashes,
        enqueued_at=from_us(parts.enqueued_us),
        payload=parts.payload,
        options=parts.options,
        run_at=run_at,
        note=note,
        worker=worker,
        claimed_at=claimed_at,
        cancelling=cancelling,
        finished_at=finished_at,
        result=result,
        result_expired=result_expired,
        history=history,
    )


# ── leases ───────────────────────────────────────────────────────────────────


def lease_of(token: Token, parts: Sequence[tuple[str, Reply]]) -> Lease:
    """A lease from the answers of `claim.lua` by queue. An answer is a number, the header and the elements.

    In place of the elements of its first run it may have the jobs themselves, if they are large.
    """
    if len(parts) == 1 and len(parts[0][1]) == 3:
        return _lease_of_one(token, *parts[0])
    suspect = False
    runs: list[tuple[int, list[Claimed]]] = []
    for queue, (_, raw, *elements) in parts:
        header = header_of(raw)
        suspect = bool(header[3])
        at, large = 0, isinstance(elements[0], Claimed)
        for lane, count, position in runs_of(header):
            some = elements[at : at + count]
            runs.append((position, some if large else _decoder.run(some, queue, lane)))
            at, large = at + count, False
    if len(runs) == 1:
        return Lease(token, runs[0][1], suspect)
    runs.sort(key=lambda run: run[0])
    jobs: list[Claimed] = []
    for position, some in runs:
        if position != len(jobs):
            # The jobs in between are on a node that does not answer. The lease ends here, and the rest of it expires.
            break
        jobs += some
    return Lease(token, jobs, suspect)


def _lease_of_one(token: Token, queue: str, answer: Reply) -> Lease:
    """The lease of one job, which an idle worker gets: it waits for this before it can start the job."""
    _, raw, element = answer
    header = header_of(raw)
    job = element if isinstance(element, Claimed) else claimed_of(element, queue, str(header[6]))
    return Lease(token, [job], bool(header[3]))


def orphan_of(token: Token, parts: Sequence[tuple[str, Reply]]) -> Orphan:
    """An orphan from the answers of `reap.lua` by queue. An answer is the header, the log of settled jobs and the elements."""
    jobs: list[tuple[int, Claimed]] = []
    for queue, (raw, log, *elements) in parts:
        settled = _settled(log)
        at = 0
        for lane, count, position in runs_of(header_of(raw)):
            # A settled job may have left an empty element.
            places = [index for index in range(at, at + count) if index not in settled]
            left = _decoder.run([elements[index] for index in places], queue, lane)
            jobs += [(position + index - at, job) for index, job in zip(places, left, strict=True)]
            at += count
    jobs.sort(key=lambda pair: pair[0])
    header = header_of(parts[0][1][0])
    victim = WorkerId(UUID(hex=str(header[1])))
    return Orphan(token, jobs, bool(header[3]), victim, str(header[4]) or "lease expired")


def _settled(log: bytes) -> set[int]:
    settled: set[int] = set()
    at = 0
    while at < len(log):
        _, count = _STEP.unpack_from(log, at)
        at += _STEP.size
        for _ in range(count):
            low, high = _PAIR.unpack_from(log, at)
            settled.update(range(low, high + 1))
            at += _PAIR.size
    return settled
