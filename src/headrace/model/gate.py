"""Gates: what a job can wait for. A gate counts how its members ended, or is signalled; a job is the gate of its own end."""

from __future__ import annotations

import os
import time
from datetime import datetime
from enum import StrEnum
from typing import NewType
from uuid import UUID

import msgspec

GateId = NewType("GateId", UUID)
"""The id of a gate: a UUID of version 8, so that it never equals the id of a job, which has version 7."""

MAX_LABEL = 200
"""Characters of the label of a gate."""
MAX_SIGNAL = 256 * 1024
"""Bytes of the value of a signal."""

_VERSION_8 = 0x8000
_VARIANT = 0b10 << 62
_LOW_BITS = (1 << 62) - 1


def new_gate_id() -> GateId:
    """A fresh id. Ids of later calls are greater, to the millisecond."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return _shaped(number)


def gate_id_in(batch: UUID, number: int) -> GateId:
    """The id of a gate that is made with a batch: the same when the batch is made again, and with its time."""
    from hashlib import blake2b  # A program whose jobs follow no others does without it.

    random = blake2b(b"%b %d" % (batch.bytes, number), digest_size=10).digest()
    return _shaped(batch.int >> 80 << 80 | int.from_bytes(random, "big"))


def derived_gate_id(*parts: str) -> GateId:
    """The same id for the same texts, such as the tenant, the name and the key of an event."""
    from hashlib import blake2b  # A program without events does without it.

    text = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return _shaped(int.from_bytes(blake2b(text, digest_size=16).digest(), "big"))


def _shaped(number: int) -> GateId:
    high = ((number >> 64) & ~0xF000) | _VERSION_8
    return GateId(UUID(int=(high << 64) | _VARIANT | (number & _LOW_BITS)))


def is_gate(id: UUID) -> bool:
    """Whether this is the id of a gate. Otherwise it is the id of a job."""
    return id.version == 8


class Needs(StrEnum):
    """What must be true of the gate before a job that waits for it runs."""

    DONE = "done"
    """Every member is done. A member that is cancelled makes it impossible; a dead one can still be replayed."""
    ENDED = "ended"
    """Every member is done, dead or cancelled."""
    FAILED = "failed"
    """A member is dead or cancelled. It is impossible when every member is done."""


class Wait(msgspec.Struct, frozen=True, gc=False):
    """What a job waits for. Share one object between the jobs of a run, as with a Lane."""

    gate: UUID
    """The id of a gate, or of a job."""
    needs: Needs = Needs.DONE


class NewGate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate to be made. If there is one of this id, it stays as it is."""

    id: GateId
    queue: str
    """The queue of a job that waits for it. A store that spreads queues over nodes keeps the gate on that node."""
    sealed: bool = True
    """False: further calls add members, and one of them seals the gate. Until then it has not ended."""
    signalled: bool = False
    """True: it has no members and waits for `signal`."""
    label: str = ""
    """For people. A gate with a label is a group, which `groups` lists."""
    tenant: str = ""


class Edge(msgspec.Struct, frozen=True):
    """Jobs of one batch, or one gate, whose end counts on a gate: they are its members."""

    first: UUID
    last: UUID
    """Of the same batch as `first`. A single job, or a gate, is its own last."""
    into: GateId


class Counts(msgspec.Struct, frozen=True):
    """The members of a gate by how they ended. Those that have not ended are the rest of `size`."""

    size: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        return self.done + self.dead + self.cancelled


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A gate as a reader sees it."""

    id: GateId
    queue: str
    label: str
    tenant: str
    sealed: bool
    counts: Counts
    signalled: bool = False
    """Whether it waits for a signal, or has got it."""
    value: bytes | None = None
    """The value of the signal."""
    made_at: datetime
    changed_at: datetime
    """When its members, their ends, or its seal last changed."""

    @property
    def over(self) -> bool:
        """Whether it is sealed and every member has ended. It takes no further members then."""
        return self.sealed and self.counts.ended == self.counts.size


class Links(msgspec.Struct, frozen=True):
    """What hangs together with a gate or a job, a bounded part of it."""

    members: tuple[Edge, ...] = ()
    """The members of a gate, in the order of their ids. A job has none."""
    into: tuple[GateId, ...] = ()
    """The gates on which its end counts."""
    blocked: tuple[UUID, ...] = ()
    """The jobs that wait for it now."""


class Predecessor(msgspec.Struct, frozen=True):
    """What a job takes over from a stored job or gate that it follows."""

    tenant: str = ""
    """Of the lane of the job, or of the gate."""
    options: bytes | None = None
    """Of the job: they hold its tenant where tenants take no turns. None: it has none, or it is a gate."""


class Verdict(StrEnum):
    """What becomes of a job that waits."""

    WAIT = "wait"
    RELEASE = "release"
    CANCEL = "cancel"
    """What it needs has become impossible."""


def verdict(needs: Needs, counts: Counts, *, sealed: bool) -> Verdict:
    """What becomes of a job that waits for a gate with these counts. A job is a sealed gate of one member, itself."""
    over = sealed and counts.ended == counts.size
    all_done = over and counts.done == counts.size
    if needs is Needs.DONE:
        return Verdict.CANCEL if counts.cancelled else Verdict.RELEASE if all_done else Verdict.WAIT
    if needs is Needs.ENDED:
        return Verdict.RELEASE if over else Verdict.WAIT
    if counts.dead or counts.cancelled:
        return Verdict.RELEASE
    return Verdict.CANCEL if all_done else Verdict.WAIT


def as_member(counts: Counts, *, sealed: bool) -> Counts:
    """What a gate is as a member of another one: open, done, dead (a replay may still complete it), or cancelled."""
    if not sealed or counts.ended != counts.size:
        return Counts(size=1)
    return Counts(
        size=1,
        done=int(counts.done == counts.size),
        dead=int(counts.dead > 0),
        cancelled=int(counts.dead == 0 and counts.cancelled > 0),
    )


def why_cancelled(needs: Needs, gate: UUID) -> str:
    """The note of a job that was cancelled because what it waited for became impossible."""
    return f"not needed: {gate} is done" if needs is Needs.FAILED else f"{gate}, which it waited for, was cancelled"


NEVER_SEALED = "its group was never completed"
"""The note of a job that waited for a gate that was not sealed before its retention was over."""
