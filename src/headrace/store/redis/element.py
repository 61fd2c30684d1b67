"""Jobs as bytes: the element that waits in a lane's list, and the records around it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.job import Claimed, Failure, Job, JobId, JobState, LogLine, NewJob
from headrace.lane import Lane
from headrace.lease import MAX_LOG, Presence, Report
from headrace.store.contract import Ending, LimitRule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The head of an element; scripts know the first 33 bytes of it.
#   14s H   batch, ord: the job's id         I H H  attempts so far, failures, crashes
#   B       flags                            Q      enqueued at, µs
#   B I     length of the task's name, length of the options
# then the task's name, the options, the limit keys where the flag says so, the payload.
_HEAD = Struct(">14sHIHHBQBI")
_SUSPECT, _OPTIONS, _LIMITS = 1, 2, 4
_LENGTH = Struct(">I")
_PAUSED = Struct(">dd")
_RULE = Struct(">dddd")
_LOOSE = Struct(">dH")
_ENDED = Struct(">cddI")
RESULT = Struct(">d")
"""Before a result: µs to live, -1 for as long as the job. Before a record's value: its version."""

_failures = msgspec.msgpack.Decoder(Failure)
_header = msgspec.msgpack.Decoder(list[str | int | float])
_encode = msgspec.msgpack.Encoder().encode

_TEXTS = ("kind", "message", "traceback", "worker")
_STATES = {b"d": JobState.DEAD, b"c": JobState.CANCELLED, b"o": JobState.DONE}


def to_us(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def from_us(us: float) -> datetime:
    return _EPOCH + timedelta(microseconds=int(us))


def lane_name(lane: Lane) -> str:
    r"""`priority|tenant|`, then the limit keys, with `\1` before, between and behind them."""
    name = f"{lane.priority}|{lane.tenant}|"
    return "\1".join((name, *lane.limits, "")) if lane.limits else name


@lru_cache(10_000)
def lane_parts(name: str) -> tuple[int, str]:
    """Priority and tenant of a lane's name."""
    priority, _, rest = name.partition("|")
    return int(priority), rest.partition("\1")[0][:-1]


def lane_of(name: str, queue: str) -> Lane:
    """The lane of this name."""
    priority, tenant = lane_parts(name)
    return Lane(queue, priority, tenant, tuple(name.split("\1")[1:-1]))


def encode_run(batch: bytes, jobs: Sequence[NewJob], low: int, high: int, enqueued_us: int) -> list[bytes]:
    """The elements of a run of jobs, which share a lane."""
    limits = jobs[low].lane.limits
    pack = _HEAD.pack
    elements: list[bytes] = []
    task, name = "", b""
    for ord in range(low, high + 1):
        job = jobs[ord]
        if job.task is not task:
            task, name = job.task, job.task.encode()
        if job.options is None and not limits:
            elements.append(pack(batch, ord, 0, 0, 0, 0, enqueued_us, len(name), 0) + name + job.payload)
        else:
            elements.append(_with_options(batch, ord, job, enqueued_us, name))
    return elements


def _with_options(batch: bytes, ord: int, job: NewJob, enqueued_us: int, name: bytes) -> bytes:
    flags = (_OPTIONS if job.options is not None else 0) | (_LIMITS if job.lane.limits else 0)
    limits = b""
    if job.lane.limits:
        limits = _encode(job.lane.limits)
        limits = _LENGTH.pack(len(limits)) + limits
    options = job.options or b""
    head = _HEAD.pack(batch, ord, 0, 0, 0, flags, enqueued_us, len(name), len(options))
    return b"".join((head, name, options, limits, job.payload))


class Decoder:
    """Elements of one answer: what they share is made once."""

    def __init__(self) -> None:
        self._batches: dict[bytes, UUID] = {}
        self._times: dict[int, datetime] = {}
        self._tasks: dict[bytes, str] = {}

    def _batch(self, prefix: bytes) -> UUID:
        made = self._batches[prefix] = UUID(bytes=prefix + b"\0\0")
        return made

    def _time(self, us: int) -> datetime:
        made = self._times[us] = from_us(us)
        return made

    def _name(self, task: bytes) -> str:
        made = self._tasks[task] = task.decode()
        return made

    def claimed(self, element: bytes, queue: str, priority: int, tenant: str) -> Claimed:
        """The job as its worker sees it: the attempt under way counts."""
        batch, ord, attempt, failures, crashes, flags, us, task_length, options_length = _HEAD.unpack_from(element)
        at = _HEAD.size + task_length
        task = element[_HEAD.size : at]
        options = None
        if flags > _SUSPECT:
            if flags & _OPTIONS:
                options = element[at : at + options_length]
                at += options_length
            if flags & _LIMITS:
                at += _LENGTH.size + _LENGTH.unpack_from(element, at)[0]
        return Claimed(
            self._batches.get(batch) or self._batch(batch),
            ord,
            attempt + 1,
            failures,
            crashes,
            self._tasks.get(task) or self._name(task),
            element[at:],
            options,
            queue,
            priority,
            tenant,
            self._times.get(us) or self._time(us),
        )


def job_of(found: list[bytes], queue: str, now_us: int) -> Job:
    """A job from an answer of `get.lua`."""
    job = _bare_job_of(found, queue, now_us)
    return replace(job, **reports_of(found[-1])) if found[-1] else job


def _bare_job_of(found: list[bytes], queue: str, now_us: int) -> Job:
    kind, what = found[0], found[1]
    history = failures_of(found[2])
    if kind in {b"s", b"b"}:
        lane, note, element = opened(what)
        run_at = from_us(float(found[3])) if kind == b"s" else None
        state = JobState.SCHEDULED if kind == b"s" else JobState.READY
        return _job(element, queue, lane, 0, history, state=state, note=note, run_at=run_at)
    if kind == b"k":
        return _ended(what, queue, now_us, history)
    lane = found[3].decode()
    if kind == b"w":
        return _job(what, queue, lane, 0, history, state=JobState.READY)
    if kind == b"r":
        header = _header.decode(found[4])
        return _job(
            what,
            queue,
            lane,
            1,
            history,
            state=JobState.RUNNING,
            worker=UUID(hex=str(header[1])),
            claimed_at=from_us(float(header[2])),
            cancelling=bool(found[5]),
        )
    finished = int(found[4])
    result, expired = _result(found[5], finished, now_us)
    return _job(
        what,
        queue,
        lane,
        1,
        history,
        state=JobState.DONE,
        finished_at=from_us(finished),
        result=result,
        result_expired=expired,
    )


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
    lane, note, element = opened(record[at:])
    return _job(
        element,
        queue,
        lane,
        0,
        history,
        state=_STATES[state],
        note=note,
        finished_at=from_us(finished),
        result=result,
        result_expired=expired,
    )


def result_record(result: bytes, ttl: timedelta | None) -> bytes:
    """A result as a lease's results keep it."""
    return RESULT.pack(-1 if ttl is None else ttl // _MICROSECOND) + result


def ended_result(result: bytes, ttl: timedelta | None) -> bytes:
    """A result as a job that ended by itself keeps it."""
    return RESULT.pack(-1 if ttl is None else ttl // _MICROSECOND) + _LENGTH.pack(len(result) + 1) + result


def opened(record: bytes) -> tuple[str, str | None, bytes]:
    """Lane, note and element of a job outside the lists."""
    _, length = _LOOSE.unpack_from(record)
    at = _LOOSE.size + length
    lane = record[_LOOSE.size : at].decode()
    (noted,) = _LENGTH.unpack_from(record, at)
    at += _LENGTH.size
    if not noted:
        return lane, None, record[at:]
    return lane, record[at : at + noted - 1].decode(), record[at + noted - 1 :]


def failures_of(blob: bytes) -> tuple[Failure, ...]:
    found: list[Failure] = []
    at = 0
    while at < len(blob):
        (length,) = _LENGTH.unpack_from(blob, at)
        at += _LENGTH.size
        found.append(_failures.decode(blob[at : at + length]))
        at += length
    return tuple(found)


def failure_bytes(failure: Failure | None) -> bytes:
    if failure is None:
        return b""
    try:
        return _encode(failure)
    except UnicodeEncodeError:
        return _encode(replace(failure, **{name: text_bytes(getattr(failure, name)).decode() for name in _TEXTS}))


def text_bytes(text: str) -> bytes:
    """UTF-8; what no encoding holds (half a surrogate pair) becomes `?`: a strange text must not stop an outcome."""
    return text.encode(errors="replace")


def presence_bytes(seen_us: int, presence: Presence) -> bytes:
    try:
        return _encode((seen_us, presence))
    except UnicodeEncodeError:
        return _encode((seen_us, replace(presence, name=text_bytes(presence.name).decode())))


def record_of(raw: bytes) -> tuple[int, bytes]:
    """Version and value of a record."""
    return int(RESULT.unpack_from(raw)[0]), raw[RESULT.size :]


# ── limits, pauses, reports ──────────────────────────────────────────────────


class Paused(NamedTuple):
    """By whom, since when and until when."""

    by: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def paused_of(record: bytes) -> Paused:
    """Nothing but None for what is not paused."""
    if not record:
        return Paused()
    since, until = _PAUSED.unpack_from(record)
    return Paused(record[_PAUSED.size :].decode(), from_us(since), from_us(until) if until >= 0 else None)


def rule_bytes(rule: LimitRule) -> bytes:
    """A rule without its version, -1 for what it does not say; then its owner's state."""
    concurrency = -1 if rule.concurrency is None else rule.concurrency
    rate = -1 if rule.rate is None else rule.rate
    closed = -1 if rule.closed_until is None else to_us(rule.closed_until)
    return _RULE.pack(concurrency, rate, rule.burst, closed) + rule.state


def rule_of(record: bytes) -> LimitRule:
    version, raw = record_of(record)
    concurrency, rate, burst, closed = _RULE.unpack_from(raw)
    return LimitRule(
        concurrency=int(concurrency) if concurrency >= 0 else None,
        rate=rate if rate >= 0 else None,
        burst=burst,
        closed_until=from_us(closed) if closed >= 0 else None,
        state=raw[_RULE.size :],
        version=version,
    )


def report_bytes(position: int, report: Report) -> bytes:
    """A report as `report.lua` takes it."""
    said: list[object] = [position, False if report.progress is None else report.progress]
    said.append(False if report.note is None else text_bytes(report.note).decode())
    for line in report.lines[-MAX_LOG:]:
        said += (to_us(line.at), text_bytes(line.text).decode())
    return _encode(said)


def reports_of(record: bytes) -> dict[str, Any]:
    """What a job's task has reported."""
    progress, doing, *lines = msgspec.msgpack.decode(record)
    return {
        "progress": None if progress is False else float(progress),
        "doing": None if doing is False else doing,
        "log": tuple(LogLine(from_us(at), text) for at, text in zip(lines[::2], lines[1::2], strict=True)),
    }


def ending_of(found: list[bytes], queue: str) -> Ending:
    """A job that ended, from an answer of `ended.lua`."""
    at, state, lane, element = found
    task = element[_HEAD.size : _HEAD.size + element[33]].decode()
    _, tenant = lane_parts(lane.decode())
    return Ending(JobId(UUID(bytes=element[:16])), _STATES[state], from_us(int(at)), queue, task, tenant)


def header_of(raw: bytes) -> list[str | int | float]:
    """Token, worker, claimed at, suspect, cause, 1: spans queues; then lane, place, count and position of each run."""
    return _header.decode(raw)


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
    _, _, attempt, failures, crashes, flags, us, task_length, options_length = _HEAD.unpack_from(element)
    at = _HEAD.size + task_length
    task = element[_HEAD.size : at].decode()
    options: bytes | None = None
    limits: tuple[str, ...] = ()
    if flags & _OPTIONS:
        options = element[at : at + options_length]
        at += options_length
    if flags & _LIMITS:
        (length,) = _LENGTH.unpack_from(element, at)
        at += _LENGTH.size
        limits = msgspec.msgpack.decode(element[at : at + length], type=tuple[str, ...])
        at += length
    priority, tenant = lane_parts(lane)
    return Job(
        id=JobId(UUID(bytes=element[:16])),
        task=task,
        queue=queue,
        priority=priority,
        tenant=tenant,
        limits=limits,
        state=state,
        attempt=attempt + attempts,
        failures=failures,
        crashes=crashes,
        enqueued_at=from_us(us),
        payload=element[at:],
        options=options,
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
