"""One statement of one connection, sent by the calling thread itself.

The driver needs an event loop. In sync code, starting and stopping a loop for each call takes more than half of the thread's
CPU time. The driver makes the connection, with everything that
belongs to it (addresses, passwords, encryption), and ends it. In between, its socket carries messages of the extended query
protocol. Both may use it in turns, because each leaves it when the server is ready for the next statement.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from struct import Struct
from typing import Final

from headrace.store.postgres.driver import Connection, is_encrypted, socket_of

_NAME: Final = b"headrace_direct\0"
"""The prepared statement. The driver's own statements have other names."""
_HEAD: Final = Struct(">ci")
"""A message: its kind, and its length with the length itself."""
_INT2: Final = Struct(">h")
_INT4: Final = Struct(">i")
_INT8: Final = Struct(">q")
_NULL: Final = _INT4.pack(-1)
_BINARY: Final = _INT2.pack(1) + _INT2.pack(1)
"""All values are binary."""
_EXECUTE: Final = _HEAD.pack(b"E", 9) + b"\0" + _INT4.pack(0)
_SYNC: Final = _HEAD.pack(b"S", 4)
_PORTION: Final = 8192

Value = bytes | None
"""A value as the server reads it."""


def int2(number: int) -> bytes:
    return _INT2.pack(number)


def int8(number: int) -> bytes:
    return _INT8.pack(number)


class DirectCall:
    """Calls a statement that answers with one row. After an error of the socket, the connection cannot be used any more."""

    def __init__(self, wire: socket.socket, statement: str) -> None:
        self._wire = wire
        body = _NAME + statement.encode() + b"\0" + _INT2.pack(0)
        self._first = _HEAD.pack(b"P", 4 + len(body)) + body
        """The message that prepares the statement, until the server has done so."""

    def call(self, values: Sequence[Value], seconds: float) -> bytes | None:
        """The first column of the row; None: the server refused, and did nothing.

        Raises OSError and EOFError: the outcome is unknown.
        """
        parts = [b"\0", _NAME, _BINARY, _INT2.pack(len(values))]
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                parts += (_INT4.pack(len(value)), value)
        parts.append(_BINARY)
        bind = b"".join(parts)
        self._wire.settimeout(seconds)
        self._wire.sendall(b"".join((self._first, _HEAD.pack(b"B", 4 + len(bind)), bind, _EXECUTE, _SYNC)))
        column, refused = self._answer()
        if refused:
            return None
        self._first = b""
        return column

    def close(self) -> None:
        self._wire.close()

    def _answer(self) -> tuple[bytes, bool]:
        """Read until the server is ready: the first column of the row, and whether there was an error."""
        buffer, at = b"", 0
        column, refused = b"", False
        while True:
            while len(buffer) - at < _HEAD.size or len(buffer) - at <= _HEAD.unpack_from(buffer, at)[1]:
                portion = self._wire.recv(_PORTION)
                if not portion:
                    raise EOFError("the server has closed the connection")
                buffer, at = buffer[at:] + portion, 0
            kind, length = _HEAD.unpack_from(buffer, at)
            if kind == b"D":
                # The number of columns, then each with its length.
                begin = at + _HEAD.size + _INT2.size
                (size,) = _INT4.unpack_from(buffer, begin)
                column = buffer[begin + _INT4.size : begin + _INT4.size + max(0, size)]
            elif kind == b"E":
                refused = True
            elif kind == b"Z":
                return column, refused
            at += 1 + length


def direct(connection: Connection, statement: str) -> DirectCall | None:
    """A way to call this statement; None: the connection is encrypted, and only the driver has the keys."""
    wire = socket_of(connection)
    # A copy of the descriptor: the driver's transport keeps its own.
    return None if wire is None or is_encrypted(connection) else DirectCall(wire.dup(), statement)
