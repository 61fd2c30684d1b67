"""Messages between a worker and its process slots: length-prefixed MessagePack, never pickle."""

from __future__ import annotations

import socket
from datetime import datetime, timedelta
from typing import Any

import msgspec

from headrace.model.gate import Gate, GateId, NewGate, Wait
from headrace.model.job import Claimed
from headrace.model.outcome import Cancelled, Failed, Released, Snoozed, Succeeded
from headrace.model.step import SignalWait, Step
from headrace.runtime.logs import LogConfig
from headrace.supervisor.handover import LENGTH, frame
from headrace.task.hooks import WorkerInfo

HEADER = LENGTH.size


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message to the child: where its tasks come from."""

    path: list[str]
    pythonpath: str | None
    app: str
    parent: int
    info: WorkerInfo | None = None
    """For the hooks of the app. None: its worker runs no hooks."""
    log: LogConfig | None = None
    """How the child logs. None: its worker is embedded in a process that is not headrace's own."""


class Order(msgspec.Struct, frozen=True, tag=True):
    """Run this."""

    job: Claimed
    module: str
    """The module that declares the task's function, for apps that were not named on the command line."""
    main: str
    """The script's path when that module is `__main__`."""
    timeout: float
    worker: str
    max_result: int
    clock: float
    """Seconds by which the store's clock is ahead of this machine's."""
    suspect: bool = False
    """The task was not written for a child process. What it cannot do here, it does in the worker."""


class SlotReport(msgspec.Struct, frozen=True, tag=True):
    """It ran."""

    outcome: Succeeded | Failed | Snoozed | Cancelled | Released


class Said(msgspec.Struct, frozen=True):
    """A report of the running task."""

    progress: float | None = None
    note: str | None = None
    line: str | None = None


class StepCallMessage(msgspec.Struct, frozen=True):
    """The task asks for its journal, for gates or for a signal, or has finished steps. The answer is a StepAnswer."""

    steps: list[Step] = []
    """Empty, and nothing else is there: it asks for the journal."""
    gates: list[GateId] = []
    wait: SignalWait | None = None


class StepAnswer(msgspec.Struct, frozen=True, tag=True):
    """The journal, gates, or nothing: the steps are stored."""

    steps: list[Step] = []
    gates: list[Gate | None] = []
    value: bytes | None = None
    """The value of the signal."""
    refused: str = ""
    """Why the steps are not stored."""


class _Tagged(msgspec.Struct, frozen=True):
    """Outcomes on the wire, by name."""

    kind: str
    value: msgspec.Raw


class _Put(msgspec.Struct, frozen=True):
    """Snoozed on the wire, where a duration and a time must not look alike."""

    until: datetime | None
    after: timedelta | None
    note: str | None
    gates: tuple[NewGate, ...]
    waits: tuple[Wait, ...]


_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Succeeded, Failed, _Put, Cancelled, Released, Said, StepCallMessage)
}
_encoder = msgspec.msgpack.Encoder()
_tagged = msgspec.msgpack.Decoder(_Tagged)
_to_child = msgspec.msgpack.Decoder(Hello | Order | StepAnswer)


def length(header: bytes) -> int:
    return int(LENGTH.unpack(header)[0])


def pack(message: Hello | Order | StepAnswer) -> bytes:
    return frame(_encoder.encode(message))


def pack_report(report: SlotReport | Said | StepCallMessage) -> bytes:
    message: Any = report.outcome if isinstance(report, SlotReport) else report
    if isinstance(message, Snoozed):
        due = message.due
        until, after = (due, None) if isinstance(due, datetime) else (None, due)
        message = _Put(until, after, message.note, message.gates, message.waits)
    return frame(_encoder.encode(_Tagged(type(message).__name__, msgspec.Raw(_encoder.encode(message)))))


def read_report(body: bytes) -> SlotReport | Said | StepCallMessage:
    tagged = _tagged.decode(body)
    message = msgspec.msgpack.decode(tagged.value, type=_KINDS[tagged.kind])
    if isinstance(message, _Put):
        return SlotReport(Snoozed(message.until or message.after, message.note, message.gates, message.waits))
    return message if isinstance(message, Said | StepCallMessage) else SlotReport(message)


def receive(pipe: socket.socket) -> Hello | Order | StepAnswer | None:
    """The child's next message; None: the parent has ended."""
    body = receive_body(pipe)
    return None if body is None else _to_child.decode(body)


def receive_body(pipe: socket.socket) -> bytes | None:
    """The next frame's content; None: the other side has ended."""
    header = _read_exactly(pipe, HEADER)
    return None if header is None else _read_exactly(pipe, length(header))


def _read_exactly(pipe: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = pipe.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
