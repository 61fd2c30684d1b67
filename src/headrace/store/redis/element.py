"""A job as the bytes that wait in a lane's list: the element, and the names of lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from headrace.model.job import Claimed, NewJob
from headrace.model.lane import Lane

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NONE = UUID(int=0)

# The head of an element; scripts know the first 33 bytes of it.
#   14s H   batch, ord: the job's id         I H H  attempts so far, failures, crashes
#   B       flags                            Q      enqueued at, µs
#   B I     length of the task's name, length of the options
# then the task's name, the options, the limit keys where the flag says so, the payload.
_HEAD = Struct(">14sHIHHBQBI")
_ORD, _REST = Struct(">H"), Struct(">IHHBQBI")
"""The head behind the batch, in two parts. Jobs that follow each other in a batch share the second."""
_FIRST = _ORD.pack(0)
_OPTIONS, _LIMITS = 2, 4  # 1: suspect
_LENGTH = Struct(">I")
_RUN = 4
"""Words of a run in the header of a lease."""
_KEPT: Final = 2000
"""Values of one kind that a decoder keeps."""

_header = msgspec.msgpack.Decoder(list[str | int | float])
_keys = msgspec.msgpack.Decoder(tuple[str, ...])
_encode = msgspec.msgpack.Encoder().encode


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
    return int(priority), rest.partition("\2")[0].partition("\1")[0][:-1]


def lane_of(name: str, queue: str) -> Lane:
    """The lane of this name."""
    priority, tenant = lane_parts(name)
    return Lane(queue, priority, tenant, tuple(name.split("\1")[1:-1]))


def encode_run(batch: bytes, jobs: Sequence[NewJob], low: int, high: int, enqueued_us: int) -> list[bytes]:
    """The elements of a run of jobs, which share a lane."""
    number = _ORD.pack
    limits = _packed_limits(jobs[low].lane.limits)
    elements: list[bytes] = []
    task, options, rest = None, None, b""
    for ord in range(low, high + 1):
        job = jobs[ord]
        if job.task is not task or job.options is not options:
            task, options = job.task, job.options
            rest = b"".join(_behind_ord(task, options, limits, enqueued_us))
        elements.append(b"".join((batch, number(ord), rest, job.payload)))
    return elements


def encode_one(batch: bytes, job: NewJob, enqueued_us: int) -> bytes:
    """The element of the only job of a batch."""
    behind = _behind_ord(job.task, job.options, _packed_limits(job.lane.limits), enqueued_us)
    return b"".join((batch, _FIRST, *behind, job.payload))


def _packed_limits(keys: tuple[str, ...]) -> bytes:
    """Empty if there are none."""
    packed = _encode(keys) if keys else b""
    return _LENGTH.pack(len(packed)) + packed if keys else b""


def _behind_ord(task: str, options: bytes | None, limits: bytes, enqueued_us: int) -> tuple[bytes, bytes, bytes, bytes]:
    """What is between the number of a new job and its payload. Jobs of one call mostly share it."""
    name, own = task.encode(), options or b""
    flags = (_OPTIONS if options is not None else 0) | (_LIMITS if limits else 0)
    return _REST.pack(0, 0, 0, flags, enqueued_us, len(name), len(own)), name, own, limits


class Parts(NamedTuple):
    """The fields of an element."""

    task: str
    options: bytes | None
    limits: tuple[str, ...]
    payload: bytes
    attempts: int
    failures: int
    crashes: int
    enqueued_us: int


def parts_of(element: bytes) -> Parts:
    _, _, attempts, failures, crashes, flags, us, task_length, options_length = _HEAD.unpack_from(element)
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
        limits = _keys.decode(element[at : at + length])
        at += length
    return Parts(task, options, limits, element[at:], attempts, failures, crashes, us)


def task_of(element: bytes) -> str:
    """The task of an element, which may be cut off behind the name of the task."""
    return element[_HEAD.size : _HEAD.size + element[33]].decode()


def claimed_of(element: bytes | memoryview, queue: str, lane: str) -> Claimed:
    """One job of a lane as its worker gets it: the attempt under way counts. `Decoder` is for many."""
    prefix, ord, attempts, failures, crashes, flags, us, task_length, options_length = _HEAD.unpack_from(element)
    at = _HEAD.size + task_length
    task, options = str(element[_HEAD.size : at], "utf-8"), None
    if flags:
        if flags & _OPTIONS:
            options = bytes(element[at : at + options_length])
        at += options_length
        if flags & _LIMITS:
            at += _LENGTH.size + _LENGTH.unpack_from(element, at)[0]
    priority, tenant = lane_parts(lane)
    return Claimed(
        UUID(bytes=prefix + b"\0\0"),
        ord,
        attempts + 1,
        failures,
        crashes,
        task,
        bytes(element[at:]),
        options,
        queue,
        priority,
        tenant,
        from_us(us),
    )


class Decoder:
    """Decodes the elements of claimed jobs. Values that several elements share are made once, also those of several claims.

    A lease of the jobs of many chains has a job of another call at each place, and the next one has jobs of the same calls.
    """

    def __init__(self) -> None:
        self._batches: dict[bytes, UUID] = {}
        self._times: dict[int, datetime] = {}
        self._tasks: dict[bytes, str] = {}

    def _batch(self, prefix: bytes) -> UUID:
        if len(self._batches) >= _KEPT:
            self._batches.clear()
        batch = self._batches[prefix] = UUID(bytes=prefix + b"\0\0")
        return batch

    def _time(self, us: int) -> datetime:
        if len(self._times) >= _KEPT:
            self._times.clear()
        time = self._times[us] = from_us(us)
        return time

    def _name(self, task: bytes) -> str:
        if len(self._tasks) >= _KEPT:
            self._tasks.clear()
        name = self._tasks[task] = task.decode()
        return name

    def run(self, elements: Sequence[bytes], queue: str, lane: str) -> list[Claimed]:
        """Jobs of one lane as their worker gets them: the attempt under way counts.

        One loop over locals, because it is most of the cost of a claim. Elements that follow each other mostly have the
        same bytes up to the payload, except for the number in their batch. A comparison of bytes detects that, and only
        the first of them is unpacked.
        """
        priority, tenant = lane_parts(lane)
        unpack, head = _HEAD.unpack_from, _HEAD.size
        jobs: list[Claimed] = []
        batch, enqueued_at, task = _NONE, _EPOCH, ""
        options: bytes | None = None
        prefix, rest, at = b"", b"", head
        attempt = failures = crashes = 0
        for element in elements:
            if element[16:at] == rest and element[:14] == prefix:
                ord = element[14] << 8 | element[15]
            else:
                prefix, ord, attempts, failures, crashes, flags, us, task_length, options_length = unpack(element)
                at, attempt = head + task_length, attempts + 1
                name, own = element[head:at], element[at : at + options_length]
                batch = self._batches.get(prefix) or self._batch(prefix)
                enqueued_at = self._times.get(us) or self._time(us)
                task = self._tasks.get(name) or self._name(name)
                # Jobs of one call mostly have equal options. One object for all of them lets the worker read them once.
                options = None if not flags & _OPTIONS else options if own == options else own
                at += options_length
                if flags & _LIMITS:
                    at += _LENGTH.size + _LENGTH.unpack_from(element, at)[0]
                rest = element[16:at]
            jobs.append(
                Claimed(
                    batch,
                    ord,
                    attempt,
                    failures,
                    crashes,
                    task,
                    element[at:],
                    options,
                    queue,
                    priority,
                    tenant,
                    enqueued_at,
                )
            )
        return jobs


def header_of(raw: bytes) -> list[str | int | float]:
    """Token, worker, claimed at, suspect, cause, 1: spans queues; then lane, place, count and position of each run."""
    return _header.decode(raw)


def runs_of(header: list[str | int | float]) -> Iterator[tuple[str, int, int]]:
    """Lane, count and position of each run of a lease."""
    for at in range(6, len(header), _RUN):
        yield str(header[at]), int(header[at + 2]), int(header[at + 3])
