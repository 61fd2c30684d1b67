"""The elements of a list, read straight from the bytes that arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis

_PORTION: Final = 1 << 18
"""Bytes that are read at once, besides an element."""
_MOST_KEPT: Final = 4_000_000
"""Bytes of memory that stay for the next list."""
_LINE: Final = 32
"""A line that says a length is shorter."""


class Bulks:
    """Reads answers that are a list of bulk strings each, and makes something of each element.

    hiredis copies a large string four times before its caller has a part of it, which costs more than the transfer. Here `make`
    gets the bytes where the system has put them, and copies what it keeps. The bytes stay there only until it returns.
    """

    def __init__(self) -> None:
        self._allocate(_PORTION)
        self.begin(bytes)

    def begin(self, make: Callable[[memoryview], Any]) -> None:
        """The next answer. The memory of the last one serves again, because the system clears fresh memory page by page."""
        self._make = make
        self._end = 0
        """Where the bytes end that have arrived."""
        self._at = 0
        """Where those begin that are not read."""
        self._missing: int | None = None
        """Elements to come. None: the answer has not begun."""
        self.results: list[Any] = []
        self.other: memoryview | None = None
        """The bytes that have arrived, if the answer is not a list but a refusal."""

    def room(self) -> memoryview:
        """Where the next bytes belong."""
        return self._view[self._end :]

    def take(self, count: int) -> bool:
        """So many bytes have arrived there. True: the list is complete. Raises ProtocolError."""
        self._end += count
        if self._missing is None:
            if self._bytes[0] != ord("*"):
                self.other = self._view[: self._end]
                return False
            self._missing = self._length(b"*")
        while self._missing:
            start = self._at
            length = self._length(b"$")
            if length is None:
                break
            end = self._at + length
            if end + 2 > self._end:
                self._at = start
                self._make_room(end + 2 - start)
                return False
            self.results.append(self._make(self._view[self._at : end]))
            self._at = end + 2
            self._missing -= 1
        if self._missing == 0 and self._at < self._end:
            raise hiredis.ProtocolError("it sent an answer without a question")
        self._make_room(_LINE)
        if self._missing == 0 and len(self._bytes) > _MOST_KEPT:
            self._allocate(_PORTION)
        return self._missing == 0

    def _length(self, kind: bytes) -> int | None:
        """The number in the next line. None: it has not arrived."""
        end = self._bytes.find(b"\r\n", self._at, min(self._end, self._at + _LINE))
        if end < 0 and self._end - self._at < _LINE:
            return None
        line = bytes(self._view[self._at : end if end > 0 else self._at + _LINE])
        if line[:1] != kind or not line[1:].isdigit():
            raise hiredis.ProtocolError(f"Protocol error, {line!r} is not the length of a list or an element")
        self._at = end + 2
        return int(line[1:])

    def _make_room(self, size: int) -> None:
        """What is not read goes to the front, if what follows does not fit behind it."""
        rest = self._end - self._at
        if rest and self._at + size <= len(self._bytes):
            return
        unread = self._view[self._at : self._end]
        if size > len(self._bytes):
            self._allocate(size + _PORTION)
        self._view[:rest] = unread
        self._at, self._end = 0, rest

    def _allocate(self, size: int) -> None:
        self._bytes = bytearray(size)
        self._view = memoryview(self._bytes)
