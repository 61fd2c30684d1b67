"""The board: a few bytes shared by a worker process and its supervisor, readable while the worker's loop is stuck."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterable
from math import inf
from time import monotonic
from uuid import UUID

from headrace.lease import Token
from headrace.worker.room import Room

_HEAD = struct.Struct("=QddI")
"""Version (odd: being written), pulse, earliest deadline, number of tokens."""
_NUMBER = struct.Struct("=d")
_PULSE, _DEADLINE = 8, 16
_MAX_TOKENS = 4000
SIZE = _HEAD.size + 16 * _MAX_TOKENS


class Board:
    """Written by the worker's process only. Times are CLOCK_MONOTONIC, which all processes of a machine share."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        self._version = 0
        self._count = 0
        self.deadline = inf
        self.write_deadline(inf)
        self.beat()

    def beat(self) -> None:
        _NUMBER.pack_into(self._map, _PULSE, monotonic())

    def write_deadline(self, deadline: float) -> None:
        """The earliest deadline of what runs. Aligned, so never seen half written."""
        self.deadline = deadline
        _NUMBER.pack_into(self._map, _DEADLINE, deadline)

    def write_tokens(self, tokens: Iterable[Token]) -> None:
        """The leases held, at every change."""
        packed = b"".join([token.bytes for token in tokens])[: 16 * _MAX_TOKENS]
        struct.pack_into("=Q", self._map, 0, self._version + 1)
        self._map[_HEAD.size : _HEAD.size + len(packed)] = packed
        struct.pack_into("=I", self._map, 24, len(packed) // 16)
        self._version += 2
        struct.pack_into("=Q", self._map, 0, self._version)

    def close(self) -> None:
        self._map.close()


class BoardView:
    """The supervisor's side."""

    def __init__(self) -> None:
        self.fd = _shared_file()
        os.ftruncate(self.fd, SIZE)
        self._map = mmap.mmap(self.fd, SIZE)
        _NUMBER.pack_into(self._map, _PULSE, monotonic())
        _NUMBER.pack_into(self._map, _DEADLINE, inf)

    @property
    def pulse(self) -> float:
        return float(_NUMBER.unpack_from(self._map, _PULSE)[0])

    @property
    def deadline(self) -> float:
        return float(_NUMBER.unpack_from(self._map, _DEADLINE)[0])

    @property
    def ready(self) -> bool:
        """The worker has written: it is up, and hears signals."""
        return bool(_HEAD.unpack_from(self._map, 0)[0])

    def tokens(self) -> list[Token]:
        """The leases held; those that stood there last, should the writer have been stopped in the middle."""
        packed = b""
        for _ in range(100):
            version, _, _, count = _HEAD.unpack_from(self._map, 0)
            packed = self._map[_HEAD.size : _HEAD.size + 16 * min(count, _MAX_TOKENS)]
            if version % 2 == 0 and _HEAD.unpack_from(self._map, 0)[0] == version:
                break
        return [Token(UUID(bytes=packed[at : at + 16])) for at in range(0, len(packed), 16)]

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-board", 0)
    with tempfile.NamedTemporaryFile(prefix="headrace-board-", delete=True) as file:
        return os.dup(file.fileno())


class Pulse(Room):
    """Shows the supervisor that the loop turns."""

    name = "pulse"

    def __init__(self, board: Board, seconds: float) -> None:
        super().__init__()
        self._board = board
        self._seconds = seconds

    async def run(self) -> None:
        while True:
            self._board.beat()
            await self.bell.wait(self._seconds)
