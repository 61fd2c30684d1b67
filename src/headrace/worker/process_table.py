"""The worker processes of one `headrace worker`, as the supervisor and what runs beside it share them."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from headrace.worker.figures import COUNTED, WorkerFigures
from headrace.worker.shared_page import SharedPageView


class WorkerProcess(Protocol):
    """One worker process."""

    page: SharedPageView
    retiring: str
    """Why it is being replaced. Empty: it is not."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def signal(self, number: signal.Signals) -> None: ...


class ProcessTable:
    """Filled by the supervisor."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Set when the supervisor stops."""
        self.processes: list[WorkerProcess] = []
        """Those that live."""
        self.starts = 0
        self._past = WorkerFigures()
        """The counters of those that have ended, so that totals never fall."""

    def add(self, process: WorkerProcess) -> None:
        self.processes.append(process)
        self.starts += 1

    def remove(self, process: WorkerProcess) -> None:
        self.processes.remove(process)
        self._past = _sum(self._past, process.page.figures)

    def totals(self) -> WorkerFigures:
        """The counters of all processes so far."""
        totals = self._past
        for process in self.processes:
            totals = _sum(totals, process.page.figures)
        return totals


def _sum(past: WorkerFigures, figures: WorkerFigures) -> WorkerFigures:
    return past._replace(**{name: getattr(past, name) + getattr(figures, name) for name in COUNTED})
