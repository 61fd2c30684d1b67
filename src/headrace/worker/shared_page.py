"""The shared page: memory that a worker writes and its supervisor reads, also while the worker's loop is stuck."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic
from typing import NamedTuple
from uuid import UUID

from headrace.model.lease import Token
from headrace.worker.figures import FIGURES_SIZE, WorkerFigures, pack_figures, read_figures
from headrace.worker.service import Service

_HEAD = struct.Struct("=QddI")
"""Whether the worker is ready, its pulse, the earliest deadline, the number of entries in use."""
_UP, _WORKED = 1, 2
_NUMBER = struct.Struct("=d")
_MARK = struct.Struct("=H")
_ENTRY = struct.Struct("=16sHHIIIB7x")
_PULSE, _DEADLINE, _USED, _FIGURES = 8, 16, 24, 32
_FIRST = _FIGURES + FIGURES_SIZE
_MARK_AT = 16
_MAX_LEASES = 4000
_SUSPECT, _NOTED = 1, 2
_NO_TOKEN = bytes(16)
SIZE = _FIRST + _ENTRY.size * _MAX_LEASES


class PageEntry(NamedTuple):
    """One lease on the page, and which of its jobs the supervisor may hand back if the worker dies."""

    token: Token
    first: int
    """The first position that has not started. Jobs from here on did not cause the worker's death."""
    size: int
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    """Its one job is a suspect and stays one. `attempt`, `failures` and `crashes` hold the job's counts so far."""
    noted: bool = False
    """It ran beside other jobs: the loss appears in its history and is not counted."""


class SharedPage:
    """Written by the worker's process only. Times are CLOCK_MONOTONIC, which all processes of a machine share."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        self._free: list[int] = []
        self._used = 0
        self._worked = False
        self.deadline = inf
        self.write_deadline(inf)
        self.beat()

    def ready(self) -> None:
        """The signal handlers are set."""
        struct.pack_into("=Q", self._map, 0, _UP)

    def show_work(self) -> None:
        """A job has ended here."""
        if not self._worked:
            self._worked = True
            struct.pack_into("=Q", self._map, 0, _WORKED)

    def beat(self) -> None:
        _NUMBER.pack_into(self._map, _PULSE, monotonic())

    def write_figures(self, figures: WorkerFigures) -> None:
        self._map[_FIGURES:_FIRST] = pack_figures(figures)

    def write_deadline(self, deadline: float) -> None:
        """The earliest deadline of the running jobs. It is aligned, so a reader never sees it half written."""
        self.deadline = deadline
        _NUMBER.pack_into(self._map, _DEADLINE, deadline)

    def add(self, entry: PageEntry) -> int:
        """Write a lease. Returns its place on the page, or 0 if the page is full."""
        if self._free:
            place = self._free.pop()
        elif self._used < _MAX_LEASES:
            place = _FIRST + _ENTRY.size * self._used
            self._used += 1
        else:
            return 0
        self.write(place, entry)
        struct.pack_into("=I", self._map, _USED, self._used)
        return place

    def write(self, place: int, entry: PageEntry) -> None:
        """Write a lease again at its place."""
        flags = _SUSPECT * entry.suspect + _NOTED * entry.noted
        counts = (entry.attempt, entry.failures, entry.crashes)
        _ENTRY.pack_into(self._map, place, entry.token.bytes, entry.first, entry.size, *counts, flags)

    def mark(self, place: int, first: int) -> None:
        """Positions before this one have started."""
        _MARK.pack_into(self._map, place + _MARK_AT, first)

    def rename(self, place: int, token: Token) -> None:
        """Replace the lease's token."""
        self._map[place : place + 16] = token.bytes

    def remove(self, place: int) -> None:
        """Remove a lease that has ended."""
        self._map[place : place + 16] = _NO_TOKEN
        self._free.append(place)

    def close(self) -> None:
        self._map.close()


class SharedPageView:
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
    def figures(self) -> WorkerFigures:
        return read_figures(self._map[_FIGURES:_FIRST])

    @property
    def ready(self) -> bool:
        """The worker has started and handles signals."""
        return bool(_HEAD.unpack_from(self._map, 0)[0])

    @property
    def worked(self) -> bool:
        """A job has ended there."""
        return bool(_HEAD.unpack_from(self._map, 0)[0] == _WORKED)

    def entries(self) -> Iterator[PageEntry]:
        """The leases on the page. A half-written one has a token that the store refuses, so it does no harm."""
        used = min(_HEAD.unpack_from(self._map, 0)[3], _MAX_LEASES)
        for place in range(_FIRST, _FIRST + _ENTRY.size * used, _ENTRY.size):
            token, first, size, attempt, failures, crashes, flags = _ENTRY.unpack_from(self._map, place)
            if token != _NO_TOKEN:
                noted, suspect = bool(flags & _NOTED), bool(flags & _SUSPECT)
                yield PageEntry(Token(UUID(bytes=token)), first, size, attempt, failures, crashes, suspect, noted)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-board", 0)
    with tempfile.NamedTemporaryFile(prefix="headrace-board-", delete=True) as file:
        return os.dup(file.fileno())


class PageWriter(Service):
    """Shows the supervisor that the event loop is not blocked, and the worker's figures."""

    name = "pulse"

    def __init__(self, page: SharedPage, seconds: float, figures: Callable[[], WorkerFigures]) -> None:
        super().__init__()
        self._page = page
        self._seconds = seconds
        self._figures = figures

    async def run(self) -> None:
        while True:
            self._page.beat()
            self._page.write_figures(self._figures())
            await self.bell.wait(self._seconds)

    async def stop(self) -> None:
        await super().stop()
        self._page.write_figures(self._figures())
