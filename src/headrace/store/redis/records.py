"""Records of results, failures, presences, pauses, rules and reports: written as bytes, and read again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from struct import Struct
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from headrace.model.job import Failure, LogLine
from headrace.model.lease import MAX_LOG, Presence, Report
from headrace.model.records import LimitRule
from headrace.store.redis.element import from_us, to_us

_LENGTH = Struct(">I")
_PAUSED = Struct(">dd")
_RULE = Struct(">dddd")
_LOOSE = Struct(">dH")
RESULT = Struct(">d")
"""Before a result: µs to live, -1 for as long as the job. Before a record's value: its version."""
_MICROSECOND = timedelta(microseconds=1)
_TEXTS = ("kind", "message", "traceback", "worker")

_failures = msgspec.msgpack.Decoder(Failure)
_presence = msgspec.msgpack.Decoder(tuple[int, Presence])
_heartbeat = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode


def text_bytes(text: str) -> bytes:
    """The text in UTF-8. Half a surrogate pair has no encoding and becomes `?`, so that a strange text cannot prevent an outcome."""
    return text.encode(errors="replace")


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
    failures: list[Failure] = []
    at = 0
    while at < len(blob):
        (length,) = _LENGTH.unpack_from(blob, at)
        at += _LENGTH.size
        failures.append(_failures.decode(blob[at : at + length]))
        at += length
    return tuple(failures)


def failure_bytes(failure: Failure | None) -> bytes:
    if failure is None:
        return b""
    try:
        return _encode(failure)
    except UnicodeEncodeError:
        return _encode(replace(failure, **{name: text_bytes(getattr(failure, name)).decode() for name in _TEXTS}))


GENERATION = 2
"""Of this version: its workers count the ends of jobs on gates, and keep steps (1), and know chains (2). A worker that tells none has the
generation 0."""


class _WorkerRecord(Presence, frozen=True, kw_only=True):
    """A presence as the store keeps it."""

    generation: int = 0


_worker_record = msgspec.msgpack.Decoder(tuple[int, _WorkerRecord])


def presence_bytes(seen_us: int, presence: Presence) -> bytes:
    fields = {**asdict(presence), "generation": GENERATION}
    try:
        return _encode((seen_us, fields))
    except UnicodeEncodeError:
        return _encode((seen_us, {**fields, "name": text_bytes(presence.name).decode()}))


def older_presences(records: Sequence[bytes], since_us: int) -> list[Presence]:
    """The workers of earlier generations that were seen since then. Bytes that are no presence are left out."""
    older: list[Presence] = []
    for record in records:
        with suppress(msgspec.DecodeError):
            at, worker = _worker_record.decode(record)
            if at > since_us and worker.generation < GENERATION:
                older.append(worker)
    return older


def seen_us(record: bytes) -> float:
    """When the worker of this record last called heartbeat. Infinity for bytes that are no such record, so that these stay."""
    try:
        return _heartbeat.decode(record)[0]
    except msgspec.DecodeError:
        return math.inf


def upkeep_of(record: bytes) -> str | None:
    """The group in which a worker does upkeep."""
    try:
        return _presence.decode(record)[1].upkeep
    except msgspec.DecodeError:
        return None


def record_of(raw: bytes) -> tuple[int, bytes]:
    """Version and value of a record."""
    return int(RESULT.unpack_from(raw)[0]), raw[RESULT.size :]


# ── limits, pauses, reports ──────────────────────────────────────────────────


class Paused(NamedTuple):
    """The operator that paused, since when and until when."""

    by: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def paused_of(record: bytes) -> Paused:
    """The pause of this record; all fields are None if there is no pause."""
    if not record:
        return Paused()
    since, until = _PAUSED.unpack_from(record)
    return Paused(record[_PAUSED.size :].decode(), from_us(since), from_us(until) if until >= 0 else None)


def rule_bytes(rule: LimitRule) -> bytes:
    """A rule without its version, then its owner's state. -1 stands for a limit that the rule does not set."""
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
    words: list[object] = [position, False if report.progress is None else report.progress]
    words.append(False if report.note is None else text_bytes(report.note).decode())
    for line in report.lines[-MAX_LOG:]:
        words += (to_us(line.at), text_bytes(line.text).decode())
    return _encode(words)


def reports_of(record: bytes) -> dict[str, Any]:
    """What a job's task has reported."""
    progress, doing, *lines = msgspec.msgpack.decode(record)
    return {
        "progress": None if progress is False else float(progress),
        "doing": None if doing is False else doing,
        "log": tuple(LogLine(from_us(at), text) for at, text in zip(lines[::2], lines[1::2], strict=True)),
    }
