"""The layout of the shared page, and the supervisor's view of it. The worker's side is `headrace.worker.shared_page`."""

from __future__ import annotations

import mmap
import os
import struct
from math import inf
from time import monotonic

from headrace.supervisor.figures import FIGURES_SIZE, WorkerFigures, read_figures
from headrace.supervisor.handover import open_unnamed
from headrace.supervisor.series import AREA_SIZE, Series, read_series

HEAD = struct.Struct("=QddI")
"""Whether the worker is ready, its pulse, the earliest deadline, the number of entries in use."""
UP, WORKED = 1, 2
NUMBER = struct.Struct("=d")
ENTRY = struct.Struct("=16sHHIIIB7x")
"""One lease: its token, and which of its jobs may be handed back."""
ID_SIZE = 16
NO_ID = bytes(ID_SIZE)
"""A worker that has no id yet, or an entry that is not in use."""
PULSE_AT, DEADLINE_AT, USED_AT, FIGURES_AT = 8, 16, 24, 32
WORKER_AT = FIGURES_AT + FIGURES_SIZE
FIRST_AT = WORKER_AT + ID_SIZE
MAX_LEASES = 4000
SERIES_AT = FIRST_AT + ENTRY.size * MAX_LEASES
VERSION = struct.Struct("=Q")
"""Of the series. They lie on the page twice, and the worker writes the copy that the version does not name."""
COPY = struct.Struct("=Q")
"""The bytes of a copy that are in use. The copy follows."""
COPY_SIZE = -(-(COPY.size + AREA_SIZE) // 8) * 8
PAGE_SIZE = SERIES_AT + VERSION.size + 2 * COPY_SIZE
_TRIES = 10
"""How often the supervisor reads the series until it has a whole copy. The worker writes them about once a second."""


def copy_at(version: int) -> int:
    """Where the copy of the series lies that this version names."""
    return SERIES_AT + VERSION.size + COPY_SIZE * (version % 2)


class SharedPageView:
    """The supervisor's side. The supervisor makes the page, and the worker writes it."""

    def __init__(self) -> None:
        self.fd = open_unnamed("headrace-page")
        os.ftruncate(self.fd, PAGE_SIZE)
        self._map = mmap.mmap(self.fd, PAGE_SIZE)
        NUMBER.pack_into(self._map, PULSE_AT, monotonic())
        NUMBER.pack_into(self._map, DEADLINE_AT, inf)

    @property
    def pulse(self) -> float:
        return float(NUMBER.unpack_from(self._map, PULSE_AT)[0])

    @property
    def deadline(self) -> float:
        return float(NUMBER.unpack_from(self._map, DEADLINE_AT)[0])

    @property
    def figures(self) -> WorkerFigures:
        return read_figures(self._map[FIGURES_AT:WORKER_AT])

    @property
    def series(self) -> list[Series]:
        """What the worker measured. Only a copy that the worker did not write meanwhile is read."""
        for _ in range(_TRIES):
            version = VERSION.unpack_from(self._map, SERIES_AT)[0]
            at = copy_at(version)
            content = self._map[at + COPY.size : at + COPY.size + COPY.unpack_from(self._map, at)[0]]
            if VERSION.unpack_from(self._map, SERIES_AT)[0] == version:
                return list(read_series(content))
        return []

    @property
    def ready(self) -> bool:
        """The worker has started and handles signals."""
        return bool(HEAD.unpack_from(self._map, 0)[0])

    @property
    def worked(self) -> bool:
        """A job has ended there."""
        return bool(HEAD.unpack_from(self._map, 0)[0] == WORKED)

    @property
    def holdings(self) -> bytes:
        """The worker's id and its leases, for a process that calls the store. Empty: the worker never reached its store.

        An entry may be half written. Its token is then one that the store refuses, so it does no harm.
        """
        used = min(HEAD.unpack_from(self._map, 0)[3], MAX_LEASES)
        content = self._map[WORKER_AT : FIRST_AT + ENTRY.size * used]
        return b"" if content[:ID_SIZE] == NO_ID else content

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def lease_count(holdings: bytes) -> int:
    """How many leases a worker held."""
    return sum(holdings[at : at + ID_SIZE] != NO_ID for at in range(ID_SIZE, len(holdings), ENTRY.size))
