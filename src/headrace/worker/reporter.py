"""REPORT: progress and notes of running tasks → store.report, a few times per second, and once before the job ends."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from headrace.errors import HeadraceError, OutcomeUnknown, Unavailable
from headrace.model.job import LogLine
from headrace.model.lease import MAX_LOG, Report
from headrace.task.codec import scrub
from headrace.worker.attempt import Attempt
from headrace.worker.lost_lease import tell_lost
from headrace.worker.outcome_of import bounded
from headrace.worker.service import OutageLog, Service, log
from headrace.worker.state import HeldLease, WorkerState

EVERY = 0.3
"""Seconds between two writes of one lease's reports."""
MAX_NOTE = 512
"""Bytes of a note; what is longer loses its middle."""
MAX_LINE = 2048


class _Draft:
    """The report of one attempt that is not written yet."""

    __slots__ = ("lines", "note", "progress")

    def __init__(self) -> None:
        self.progress: float | None = None
        self.note: str | None = None
        self.lines: deque[LogLine] = deque(maxlen=MAX_LOG)

    def report(self) -> Report:
        return Report(progress=self.progress, note=self.note, lines=tuple(self.lines))

    def put_before(self, older: Report) -> None:
        """Put back a report that was not written."""
        self.progress = older.progress if self.progress is None else self.progress
        self.note = older.note if self.note is None else self.note
        self.lines = deque((*older.lines, *self.lines), maxlen=MAX_LOG)


class Reporter(Service):
    """Collects reports by attempt, from any thread, and writes them by lease."""

    name = "reporter"

    def __init__(self, state: WorkerState, *, lose: Callable[[HeldLease], None]) -> None:
        super().__init__()
        self._state = state
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._drafts: dict[Attempt, _Draft] = {}
        self._lock = threading.Lock()
        """Guards the drafts, because tasks in threads report, too."""
        self._writing: dict[HeldLease, asyncio.Task[bool]] = {}
        self._outage = OutageLog("reporting progress")

    def take(
        self, attempt: Attempt, *, progress: float | None = None, note: str | None = None, line: str | None = None
    ) -> None:
        """Take a report of a task. Any thread may call this."""
        if attempt.slots is None or attempt.given_up or attempt.held.lost:
            return  # The job has ended for this worker, and the store would refuse the report.
        if note is not None:
            note = self._text(attempt, note, MAX_NOTE)
        entry = None if line is None else LogLine(self._now(), self._text(attempt, line, MAX_LINE))
        with self._lock:
            draft = self._drafts.get(attempt)
            fresh = draft is None
            if draft is None:
                draft = self._drafts[attempt] = _Draft()
            if progress is not None:
                draft.progress = progress
            if note is not None:
                draft.note = note
            if entry is not None:
                draft.lines.append(entry)
            attempt.held.reported = True
        if fresh:
            self._loop.call_soon_threadsafe(self.bell.ring)

    def _text(self, attempt: Attempt, text: str, limit: int) -> str:
        return bounded(scrub(text, attempt.secrets()), limit)

    def _now(self) -> datetime:
        watch = self._state.watch
        return datetime.fromtimestamp(watch.now(), UTC) if watch.is_set else datetime.now(UTC)

    # ── the service ─────────────────────────────────────────────────────────
    async def run(self) -> None:
        while True:
            await self.bell.wait()
            for held in dict.fromkeys(attempt.held for attempt in list(self._drafts)):
                await self.flush(held)
            await asyncio.sleep(EVERY)
            if self._drafts:
                self.bell.ring()

    async def flush(self, held: HeldLease) -> None:
        """Write the reports of this lease once. A failed write is repeated while the job runs."""
        while (call := self._writing.get(held)) is not None:
            await asyncio.wait([call])
        reports = self._take_drafts(held)
        if not reports or held.lost:
            return
        # A task of its own, because the caller may be cancelled. The reports that were taken out are written or put
        # back.
        call = self._writing[held] = asyncio.create_task(self._write(held, reports))
        try:
            await asyncio.wait([call])
        finally:
            if call.done():
                self._writing.pop(held, None)
            else:
                call.add_done_callback(lambda _: self._writing.pop(held, None))

    async def stop(self) -> None:
        await super().stop()
        calls = list(self._writing.values())
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    def _take_drafts(self, held: HeldLease) -> list[tuple[Attempt, int, Report]]:
        with self._lock:
            mine = [attempt for attempt in self._drafts if attempt.held is held]
            return [(attempt, attempt.position, self._drafts.pop(attempt).report()) for attempt in mine]

    async def _write(self, held: HeldLease, reports: list[tuple[Attempt, int, Report]]) -> bool:
        token = held.token
        try:
            writing = self._state.store.report(token, [(position, report) for _, position, report in reports])
            refused = await self._state.calls.timed("report", writing)
        except (Unavailable, OutcomeUnknown) as error:
            self._outage.raise_(error)
            self._put_back(reports)
            return False
        except HeadraceError as error:
            self._outage.raise_(error)
            return False
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the worker
            self._outage.raise_(error)
            log.exception("the store raised an unexpected error during a report")
            return False
        self._outage.settle()
        if refused and (token != held.token or self._state.reaping):
            # The janitor has renewed the lease under a fresh token, or may do so just now.
            self._put_back(reports)
            return False
        self._hear(held, reports, refused)
        return True

    def _put_back(self, reports: list[tuple[Attempt, int, Report]]) -> None:
        with self._lock:
            for attempt, _, report in reports:
                if attempt.slots is not None and not attempt.held.lost:
                    self._drafts.setdefault(attempt, _Draft()).put_before(report)

    def _hear(self, held: HeldLease, reports: list[tuple[Attempt, int, Report]], refused: frozenset[int]) -> None:
        """The store refused a report for a job that still runs under this lease: another worker holds the lease."""
        running = any(
            position in refused and attempt.slots is not None and attempt.held is held
            for attempt, position, _ in reports
        )
        if running and not held.lost and not held.ending:
            tell_lost(self._state, held)
            self._lose(held)
