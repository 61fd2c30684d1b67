"""Replaces worker processes that have run many jobs or use much memory: `max_jobs`, `max_memory`."""

from __future__ import annotations

import signal

from headrace.runtime.memory import worn
from headrace.supervisor.log import log
from headrace.supervisor.process_table import ProcessTable, WorkerProcess

EVERY = 0.5
"""Seconds between two looks."""


class Recycler:
    """Retires one process at a time, so that the others go on claiming."""

    def __init__(self, table: ProcessTable, *, max_jobs: int, max_memory: int) -> None:
        self._table = table
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._leaving: WorkerProcess | None = None
        self._signalled = False

    def look(self) -> None:
        """Retire the next process, or go on with the one that leaves."""
        processes = self._table.processes
        if self._table.stopping:
            return
        if self._leaving in processes:
            self._let_go(self._leaving)
            return
        self._leaving = None
        for process in processes:
            figures = process.page.figures
            limits = {"max_jobs": self._max_jobs, "max_memory": self._max_memory}
            if figures.serving and not figures.quiet and (why := worn(process.pid, figures.ended, **limits)):
                self._retire(process, why)
                return

    def _retire(self, process: WorkerProcess, why: str) -> None:
        """Let the process finish what it holds, without the limit of time that a drain has."""
        log.info("worker process %d %s: it finishes its jobs, and a new one replaces it", process.pid, why)
        process.retiring = why
        self._leaving, self._signalled = process, False
        process.send_signal(signal.SIGTSTP)

    def _let_go(self, process: WorkerProcess) -> None:
        figures = process.page.figures
        if figures.quiet and not figures.running and not figures.waiting and not self._signalled:
            self._signalled = True
            process.send_signal(signal.SIGTERM)
