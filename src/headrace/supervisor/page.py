"""The layout of the shared page, and the supervisor's view of it. The worker's side is `headrace.worker.shared_page`."""

from __future__ import annotations

import mmap
import os
import struct
from math import inf
from time import monotonic

from headrace.supervisor.figures import FIGURES_SIZE, WorkerFigures, read_figures
from headrace.supervisor.handover import open_unnamed

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
PAGE_SIZE = FIRST_AT + ENTRY.size * MAX_LEASES


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
