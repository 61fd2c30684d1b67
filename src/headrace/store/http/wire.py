"""The wire between the http store and a server: every verb's arguments and answer as MessagePack, and how they are typed.

Both sides use this file. Types that would be ambiguous in MessagePack (a duration or a time, one settlement or the
other) have a structure of their own here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from headrace.model.gate import Edge, Gate, GateId, Links, NewGate, Wait
from headrace.model.job import Batch, BatchId, Due, Failure, Job, JobId, JobState, Key, NewJob, UniqueLock
from headrace.model.lane import Ahead, Lane, LaneView
from headrace.model.lease import Ask, Lease, Orphan, Presence, Pulse, Report, Token, WorkerId
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.model.records import (
    CancelAnswer,
    Ending,
    Filter,
    Finding,
    LimitRule,
    Page,
    Pause,
    PauseKind,
    Promoted,
    Pruned,
    Record,
    Retention,
    Stats,
)
from headrace.model.rollup import HistoryPage, Rollup, RollupKey
from headrace.model.step import Step
from headrace.task.codec.hooks import is_dict, is_list

MEDIA: Final = "application/vnd.headrace+msgpack"
DropEvent = Literal["dead.discard", "dead.delete", "dead.expire"]
"""Why a dead letter is dropped, for the log line."""
VERSION: Final = 2
"""The version of this wire. A server reports it, and a store refuses another version."""
LONGEST_WAIT: Final = 30.0
"""Seconds that one call of `wait` takes at most."""
MAX_BODY: Final = 64 * 1024 * 1024
"""Bytes of one call with jobs or results. A batch is all or nothing, so it must fit into one call."""
MOST_IDS: Final = 1000
"""Jobs that one call names; a store sends more in several calls."""
MOST_STEPS: Final = 100
"""Steps that one call adds."""
SPLIT: Final = 8 * 1024 * 1024
"""Bytes of results beyond which settlements go in several calls."""

Moment = int | datetime | None
"""A Due: microseconds from now, a time, or at once."""


def pack_due(due: Due) -> Moment:
    return due // _TICK if isinstance(due, timedelta) else due


def read_due(due: Moment) -> Due:
    return timedelta(microseconds=due) if isinstance(due, int) else due


_TICK = timedelta(microseconds=1)


class Hello(msgspec.Struct, frozen=True):
    """The server's first answer."""

    version: int
    tidies: bool
    """The server promotes and reaps by itself, so clients need not."""


# ── enqueue ──────────────────────────────────────────────────────────────────


class WireJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A NewJob. Its lane is an index into the batch's lanes."""

    task: str
    payload: bytes
    lane: int
    due: Moment
    key: Key | None
    options: bytes | None
    unique: UniqueLock | None
    wait: Wait | None = None


class WireBatch(msgspec.Struct, frozen=True, array_like=True):
    id: UUID
    lanes: list[Lane]
    jobs: list[WireJob]
    gates: tuple[NewGate, ...] = ()
    edges: tuple[Edge, ...] = ()
    seals: tuple[GateId, ...] = ()


def pack_batch(batch: Batch) -> WireBatch:
    lanes: dict[Lane, int] = {}
    jobs = [
        WireJob(
            job.task,
            job.payload,
            lanes.setdefault(job.lane, len(lanes)),
            pack_due(job.due),
            job.key,
            job.options,
            job.unique,
            job.wait,
        )
        for job in batch.jobs
    ]
    return WireBatch(batch.id, list(lanes), jobs, batch.gates, batch.edges, batch.seals)


def read_batch(wire: WireBatch) -> Batch:
    """Raises ValueError for an unknown lane."""
    lanes = wire.lanes
    if any(not 0 <= job.lane < len(lanes) for job in wire.jobs):
        raise ValueError("a job names a lane that does not exist")
    jobs = [
        NewJob(job.task, job.payload, lanes[job.lane], read_due(job.due), job.key, job.options, job.unique, job.wait)
        for job in wire.jobs
    ]
    return Batch(BatchId(wire.id), jobs, wire.gates, wire.edges, wire.seals)


# ── settle ───────────────────────────────────────────────────────────────────


class WireFinish(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    state: JobState
    result: bytes | None = None
    result_ttl: int | None = None
    note: str | None = None
    failure: Failure | None = None
    failures: int | None = None
    crashes: int | None = None


class WireAgain(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    failures: int
    crashes: int
    due: Moment = None
    suspect: bool = False
    note: str | None = None
    failure: Failure | None = None
    waits: tuple[Wait, ...] = ()
    gates: tuple[NewGate, ...] = ()


WireSettlement = WireFinish | WireAgain
_DONE = WireFinish(JobState.DONE)


def pack_settlement(settlement: Settlement) -> WireSettlement:
    if settlement is DONE:
        return _DONE
    if isinstance(settlement, Finish):
        ttl = settlement.result_ttl
        return WireFinish(
            settlement.state,
            settlement.result,
            None if ttl is None else ttl // _TICK,
            settlement.note,
            settlement.failure,
            settlement.failures,
            settlement.crashes,
        )
    return WireAgain(
        settlement.failures,
        settlement.crashes,
        pack_due(settlement.due),
        settlement.suspect,
        settlement.note,
        settlement.failure,
        settlement.waits,
        settlement.gates,
    )


def read_settlement(wire: WireSettlement) -> Settlement:
    """Raises ValueError for a state that is not an end."""
    if isinstance(wire, WireAgain):
        return Again(
            wire.failures,
            wire.crashes,
            read_due(wire.due),
            wire.suspect,
            wire.note,
            wire.failure,
            wire.gates,
            wire.waits,
        )
    if wire == _DONE:
        return DONE
    state = wire.state
    if state is not JobState.DONE and state is not JobState.DEAD and state is not JobState.CANCELLED:
        raise ValueError(f"{state} is not an end of a job")
    return Finish(
        state,
        wire.result,
        None if wire.result_ttl is None else timedelta(microseconds=wire.result_ttl),
        wire.note,
        wire.failure,
        wire.failures,
        wire.crashes,
    )


# ── the verbs ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Verb:
    """One call: `POST /v1/store/<name>`, its arguments as one array."""

    name: str
    takes: Any
    """The type of its arguments: a tuple."""
    gives: Any
    """The type of its answer."""
    reads: bool = False
    """It changes nothing, so a call with a lost answer has no effect."""
    repeats: bool = False
    """It may be repeated: after a lost answer it is sent again."""
    large: bool = False
    """It contains jobs or results."""


Positions = list[tuple[int, WireSettlement]]
Reports = list[tuple[int, Report]]

VERBS: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for verb in (
        Verb("hello", tuple[()], Hello, reads=True),
        Verb("check", tuple[()], list[Finding], reads=True),
        Verb("now", tuple[()], datetime, reads=True),
        Verb("enqueue", tuple[WireBatch], dict[int, UUID], repeats=True, large=True),
        Verb("claim", tuple[Ask], Lease | None, repeats=True),
        Verb("heartbeat", tuple[list[Token], timedelta, Presence | None], Pulse, repeats=True),
        Verb("settle", tuple[Token, Positions], frozenset[int], large=True),
        Verb("report", tuple[Token, Reports], frozenset[int], large=True),
        Verb("wait", tuple[list[str], float], bool, reads=True),
        Verb("promote", tuple[int], Promoted, repeats=True),
        Verb("reap", tuple[WorkerId, timedelta, int], list[Orphan]),
        Verb("abandon", tuple[WorkerId, str], int, repeats=True),
        Verb("retire", tuple[WorkerId], None, repeats=True),
        Verb("prune", tuple[Retention, int], Pruned, repeats=True),
        Verb("expired_dead", tuple[Retention, int], list[JobId], reads=True),
        Verb("get", tuple[list[JobId]], list[Job | None], reads=True),
        Verb("find", tuple[Filter, JobId | None, int], Page, reads=True),
        Verb("stats", tuple[()], Stats, reads=True),
        Verb("workers", tuple[()], list[Presence], reads=True),
        Verb("ended", tuple[datetime, int], list[Ending], reads=True),
        Verb("lanes", tuple[list[str], int], list[LaneView], reads=True),
        Verb("ahead", tuple[JobId, int], Ahead | None, reads=True),
        Verb("cancel", tuple[list[JobId], str | None], dict[JobId, CancelAnswer]),
        Verb("retry", tuple[list[JobId], bool], frozenset[JobId]),
        Verb("delete", tuple[list[JobId], frozenset[JobState] | None, datetime | None], frozenset[JobId]),
        Verb("drop", tuple[list[JobId], DropEvent, str, datetime | None], frozenset[JobId]),
        Verb("pause", tuple[str, PauseKind, str, datetime | None], None, repeats=True),
        Verb("resume", tuple[str, PauseKind], None, repeats=True),
        Verb("pauses", tuple[()], list[Pause], reads=True),
        Verb("limits", tuple[()], dict[str, LimitRule], reads=True),
        Verb("limit", tuple[str, LimitRule | None, int | None], int | None),
        Verb("records", tuple[str], dict[str, Record], reads=True),
        Verb("record", tuple[str, str, bytes | None, int | None], int | None),
        Verb("detach", tuple[Token, int, Token], bool),
        Verb("add_history", tuple[list[Rollup]], None, repeats=True, large=True),
        Verb("read_history", tuple[int, int, str | None, str | None, RollupKey | None, int], HistoryPage, reads=True),
        Verb("add_steps", tuple[Token, list[tuple[int, Step]]], frozenset[int], repeats=True, large=True),
        Verb("read_steps", tuple[JobId], list[Step], reads=True),
        Verb("signal", tuple[NewGate, bytes, timedelta], bool, large=True),
        Verb("gates", tuple[list[GateId]], list[Gate | None], reads=True),
        Verb("groups", tuple[str | None, GateId | None, int], list[Gate], reads=True),
        Verb("links", tuple[UUID, UUID | None, int], Links, reads=True),
        Verb("fold_history", tuple[list[RollupKey], list[Rollup]], bool, repeats=True, large=True),
    )
}

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


def encode(value: Any) -> bytes:
    """Encode as MessagePack. Lone surrogates are replaced, so that no outcome is refused because of them."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_sane(msgspec.to_builtins(value, builtin_types=(bytes, datetime, timedelta, UUID))))


def _sane(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if is_dict(value):
        return {_sane(key): _sane(item) for key, item in value.items()}
    if is_list(value):
        return [_sane(item) for item in value]
    return value


_takes: Final = {name: msgspec.msgpack.Decoder(verb.takes) for name, verb in VERBS.items()}
_gives: Final = {name: msgspec.msgpack.Decoder(verb.gives) for name, verb in VERBS.items()}


def read_arguments(verb: Verb, body: bytes) -> tuple[Any, ...]:
    """Raises msgspec.DecodeError."""
    arguments: tuple[Any, ...] = _takes[verb.name].decode(body)
    return arguments


def read_answer(verb: Verb, body: bytes) -> Any:
    """Raises msgspec.DecodeError."""
    return _gives[verb.name].decode(body)
