"""The shared page: memory that a worker writes and its supervisor reads, also while the worker's loop is stuck."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import Final, NamedTuple
from uuid import UUID

from headrace.model.lease import Token, WorkerId
from headrace.supervisor.figures import WorkerFigures, pack_figures
from headrace.supervisor.page import (
    COPY,
    DEADLINE_AT,
    ENTRY,
    FIGURES_AT,
    FIRST_AT,
    ID_SIZE,
    MAX_LEASES,
    NO_ID,
    NUMBER,
    PAGE_SIZE,
    PULSE_AT,
    SERIES_AT,
    UP,
    USED_AT,
    VERSION,
    WORKED,
    WORKER_AT,
    copy_at,
)
from headrace.supervisor.series import Series, pack_series
from headrace.worker.service import Service

_MARK = struct.Struct("=H")
_MARK_AT = ID_SIZE
_SUSPECT, _NOTED = 1, 2
SERIES_EVERY: Final = 1.0
"""Seconds between two writes of the series."""


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
        self._map = mmap.mmap(fd, PAGE_SIZE)
        self._free: list[int] = []
        self._used = 0
        self._worked = False
        self._version = 0
        self.deadline = inf
        self.write_deadline(inf)
        self.beat()

    def ready(self) -> None:
        """The signal handlers are set."""
        struct.pack_into("=Q", self._map, 0, UP)

    def show_worker(self, worker: WorkerId) -> None:
        """The store will know this process by this id. Before that it holds nothing that could be handed back."""
        self._map[WORKER_AT:FIRST_AT] = worker.bytes

    def show_work(self) -> None:
        """A job has ended here."""
        if not self._worked:
            self._worked = True
            struct.pack_into("=Q", self._map, 0, WORKED)

    def beat(self) -> None:
        NUMBER.pack_into(self._map, PULSE_AT, monotonic())

    def write_figures(self, figures: WorkerFigures) -> None:
        self._map[FIGURES_AT:WORKER_AT] = pack_figures(figures)

    def write_series(self, series: Iterable[Series]) -> None:
        """Write the copy that the supervisor does not read, then name it. A worker that dies between leaves the other one."""
        content = pack_series(series)
        self._version += 1
        at = copy_at(self._version)
        COPY.pack_into(self._map, at, len(content))
        self._map[at + COPY.size : at + COPY.size + len(content)] = content
        VERSION.pack_into(self._map, SERIES_AT, self._version)

    def write_deadline(self, deadline: float) -> None:
        """The earliest deadline of the running jobs. It is aligned, so a reader never sees it half written."""
        self.deadline = deadline
        NUMBER.pack_into(self._map, DEADLINE_AT, deadline)

    def add(self, entry: PageEntry) -> int:
        """Write a lease. Returns its place on the page, or 0 if the page is full."""
        if self._free:
            place = self._free.pop()
            self.write(place, entry)
            return place
        if self._used >= MAX_LEASES:
            return 0
        place = FIRST_AT + ENTRY.size * self._used
        self.write(place, entry)
        # A reader looks at a place only when this number includes it.
        self._used += 1
        struct.pack_into("=I", self._map, USED_AT, self._used)
        return place

    def write(self, place: int, entry: PageEntry) -> None:
        """Write a lease again at its place."""
        flags = _SUSPECT * entry.suspect + _NOTED * entry.noted
        counts = (entry.attempt, entry.failures, entry.crashes)
        ENTRY.pack_into(self._map, place, entry.token.bytes, entry.first, entry.size, *counts, flags)

    def mark(self, place: int, first: int) -> None:
        """Positions before this one have started."""
        _MARK.pack_into(self._map, place + _MARK_AT, first)

    def rename(self, place: int, token: Token) -> None:
        """Replace the lease's token."""
        self._map[place : place + ID_SIZE] = token.bytes

    def remove(self, place: int) -> None:
        """Remove a lease that has ended."""
        self._map[place : place + ID_SIZE] = NO_ID
        self._free.append(place)

    def close(self) -> None:
        self._map.close()


class Holdings(NamedTuple):
    """What a worker held, as its page shows it."""

    worker: WorkerId
    entries: list[PageEntry]


def read_holdings(content: bytes) -> Holdings:
    """Read what `SharedPageView.holdings` copied from a page."""
    entries: list[PageEntry] = []
    for fields in ENTRY.iter_unpack(content[ID_SIZE:]):
        token, first, size, attempt, failures, crashes, flags = fields
        if token != NO_ID:
            noted, suspect = bool(flags & _NOTED), bool(flags & _SUSPECT)
            entries.append(PageEntry(Token(UUID(bytes=token)), first, size, attempt, failures, crashes, suspect, noted))
    return Holdings(WorkerId(UUID(bytes=content[:ID_SIZE])), entries)


class PageWriter(Service):
    """Shows the supervisor that the event loop is not blocked, and what the worker counts and measures."""

    name = "pulse"

    def __init__(
        self,
        page: SharedPage,
        seconds: float,
        figures: Callable[[], WorkerFigures],
        series: Callable[[], Iterable[Series]],
    ) -> None:
        super().__init__()
        self._page = page
        self._seconds = seconds
        self._figures = figures
        self._series = series

    async def run(self) -> None:
        series_at = 0.0
        while True:
            self._page.beat()
            self._page.write_figures(self._figures())
            if (now := monotonic()) >= series_at:
                # Less often than the figures, because a worker of many tasks writes some 60 KB.
                series_at = now + SERIES_EVERY
                self._page.write_series(self._series())
            await self.bell.wait(self._seconds)

    async def stop(self) -> None:
        await super().stop()
        self._page.write_figures(self._figures())
        self._page.write_series(self._series())
