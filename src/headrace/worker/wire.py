"""What a worker and its process slots say to each other: length-prefixed MessagePack, never pickle."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from headrace.job import Claimed
from headrace.outcome import Cancelled, Failed, Released, Snoozed, Succeeded

_LENGTH = struct.Struct("!I")
HEADER = _LENGTH.size


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First to the child: where its tasks come from."""

    path: list[str]
    pythonpath: str | None
    app: str
    parent: int


class Order(msgspec.Struct, frozen=True, tag=True):
    """Run this."""

    job: Claimed
    module: str
    """Where the task's function was declared, for apps that were not named on the command line."""
    main: str
    """The script's path when that module is `__main__`."""
    timeout: float
    worker: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """It ran."""

    outcome: Succeeded | Failed | Snoozed | Cancelled | Released


class _Tagged(msgspec.Struct, frozen=True):
    """Outcomes on the wire, by name."""

    kind: str
    value: msgspec.Raw


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Succeeded, Failed, Snoozed, Cancelled, Released)}
_encoder = msgspec.msgpack.Encoder()
_tagged = msgspec.msgpack.Decoder(_Tagged)
_to_child = msgspec.msgpack.Decoder(Hello | Order)


def frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def length(header: bytes) -> int:
    return int(_LENGTH.unpack(header)[0])


def pack(message: Hello | Order) -> bytes:
    return frame(_encoder.encode(message))


def pack_report(report: Report) -> bytes:
    outcome = report.outcome
    return frame(_encoder.encode(_Tagged(type(outcome).__name__, msgspec.Raw(_encoder.encode(outcome)))))


def read_report(body: bytes) -> Report:
    tagged = _tagged.decode(body)
    return Report(msgspec.msgpack.decode(tagged.value, type=_KINDS[tagged.kind]))


def receive(pipe: socket.socket) -> Hello | Order | None:
    """The child's next message; None: the parent is gone."""
    body = receive_body(pipe)
    return None if body is None else _to_child.decode(body)


def receive_body(pipe: socket.socket) -> bytes | None:
    """The next frame's content; None: the other side is gone."""
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
