"""What a worker process counts, as it lies on the shared page for its supervisor."""

from __future__ import annotations

import struct
from typing import NamedTuple

SERVING, QUIET, AWAY = 1, 2, 4
"""Bits of `WorkerFigures.state`: it serves its queues, it claims nothing more, it does not reach its store."""


class WorkerFigures(NamedTuple):
    """The state and the numbers of one worker process. All counters start at 0 with the process."""

    state: int = 0
    slots: int = 0
    threads: int = 0
    processes: int = 0
    running_async: int = 0
    running_thread: int = 0
    running_process: int = 0
    waiting: int = 0
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    crashed: int = 0
    lost: int = 0
    claims: int = 0
    settlements: int = 0
    heartbeats: int = 0
    batches: int = 0
    """Settle calls that the store has answered."""
    settled: int = 0
    """Jobs of those calls."""

    @property
    def serving(self) -> bool:
        return bool(self.state & SERVING)

    @property
    def quiet(self) -> bool:
        return bool(self.state & QUIET)

    @property
    def away(self) -> bool:
        return bool(self.state & AWAY)

    @property
    def running(self) -> int:
        return self.running_async + self.running_thread + self.running_process

    @property
    def ended(self) -> int:
        """Attempts that ran to an end here."""
        return self.succeeded + self.failed + self.snoozed + self.cancelled


COUNTED = WorkerFigures._fields[WorkerFigures._fields.index("claimed") :]
"""Fields that only grow."""

_LAYOUT = struct.Struct(f"@{len(WorkerFigures._fields)}Q")
FIGURES_SIZE = _LAYOUT.size


def pack_figures(figures: WorkerFigures) -> bytes:
    return _LAYOUT.pack(*figures)


def read_figures(data: bytes) -> WorkerFigures:
    return WorkerFigures._make(_LAYOUT.unpack(data))
