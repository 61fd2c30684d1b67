"""The worker processes of one `headrace worker`, as the supervisor and what runs beside it share them."""

from __future__ import annotations

from typing import Protocol

from headrace.supervisor.figures import COUNTED, WorkerFigures
from headrace.supervisor.page import SharedPageView
from headrace.supervisor.series import SeriesSum


class WorkerProcess(Protocol):
    """One worker process."""

    page: SharedPageView
    retiring: str
    """Why it is being replaced. Empty: it is not."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


class ProcessTable:
    """Filled by the supervisor."""

    def __init__(self) -> None:
        self.stopping = False
        """The supervisor has been told to stop."""
        self.processes: list[WorkerProcess] = []
        """Those that live."""
        self.starts = 0
        self._past = WorkerFigures()
        """The counters of those that have ended, so that totals never fall."""
        self._past_series = SeriesSum()

    def add(self, process: WorkerProcess) -> None:
        self.processes.append(process)
        self.starts += 1

    def remove(self, process: WorkerProcess) -> None:
        self.processes.remove(process)
        self._past = _sum(self._past, process.page.figures)
        self._past_series.add(process.page.series, gauges=False)

    def totals(self) -> WorkerFigures:
        """The counters of all processes so far."""
        totals = self._past
        for process in self.processes:
            totals = _sum(totals, process.page.figures)
        return totals

    def series(self) -> SeriesSum:
        """What all processes have measured so far, and the gauges of those that live."""
        series = self._past_series.copy()
        for process in self.processes:
            series.add(process.page.series)
        return series


def _sum(past: WorkerFigures, figures: WorkerFigures) -> WorkerFigures:
    return past._replace(**{name: getattr(past, name) + getattr(figures, name) for name in COUNTED})
