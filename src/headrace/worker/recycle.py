"""Replaces worker processes that have run many jobs or use much memory: `max_jobs`, `max_memory`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from headrace.settings import Settings
from headrace.worker.memory import worn
from headrace.worker.process_table import ProcessTable, WorkerProcess
from headrace.worker.service import log

EVERY = 0.5
"""Seconds between two looks."""


class Recycler:
    """Retires one process at a time, so that the others go on claiming."""

    def __init__(self, table: ProcessTable, settings: Settings) -> None:
        self._table = table
        self._max_jobs = settings.max_jobs
        self._max_memory = settings.max_memory
        self._leaving: WorkerProcess | None = None
        self._signalled = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                self.look()
            except Exception:  # noqa: BLE001  # the supervisor goes on without replacements
                log.exception("looking for worker processes to replace failed")

    def look(self) -> None:
        """Retire the next process, or go on with the one that leaves."""
        processes = self._table.processes
        if self._table.stop.is_set():
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
        process.signal(signal.SIGTSTP)

    def _let_go(self, process: WorkerProcess) -> None:
        figures = process.page.figures
        if figures.quiet and not figures.running and not figures.waiting and not self._signalled:
            self._signalled = True
            process.signal(signal.SIGTERM)


@asynccontextmanager
async def recycling(table: ProcessTable, settings: Settings) -> AsyncGenerator[None]:
    """Replace worker processes while the block runs, if a setting asks for it."""
    if not (settings.max_jobs or settings.max_memory):
        yield
        return
    task = asyncio.create_task(Recycler(table, settings).run(), name="headrace-recycler")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
