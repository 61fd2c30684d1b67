"""What `headrace top` shows: the figures of queues each second, and the rest where and when it is looked at.

No call grows with the backlog. Figures of queues cost what `headrace stats` costs, and a list reads a few pages at most.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from headrace.cli.board import Board, Rates, sparkline
from headrace.cli.top.text import Row, dead_row, queue_row, running_row, worker_row
from headrace.errors import StoreError
from headrace.model.job import Job, JobState
from headrace.model.lease import Presence
from headrace.model.records import Filter, Page, QueueStats
from headrace.operate.autoscale import AutoscaleOperations, QueueDemand, closed_queues
from headrace.operate.dead.causes import Causes
from headrace.operate.dead.letters import Group, join, most_frequent
from headrace.operate.history import HistoryOperations
from headrace.store import pages

if TYPE_CHECKING:
    from headrace.cli.target import Target
    from headrace.model.job import JobId
    from headrace.store.contract import Store

ListName = Literal["running", "workers", "dead"]
"""The lists beside the queues. Only the one that is shown is read."""

PAGE: Final = 100
"""Jobs of one list."""
_CALLS: Final = 5
"""Calls of `find` for one list."""
_SLOW: Final = 5.0
"""Seconds between two readings of history, which workers write every ten seconds."""
_RECENT: Final = timedelta(minutes=5)
"""How far the percentiles of waits reach back."""


@dataclass(slots=True)
class TopFigures:
    """The latest figures of one store. Those of before stay while the store is away."""

    store: Store
    target: Target
    queue: str | None = None
    """The only queue that is shown. None: all."""
    board: Board = field(default_factory=Board)
    demands: dict[str, QueueDemand] = field(default_factory=dict[str, QueueDemand])
    waits: dict[str, float] = field(default_factory=dict[str, float])
    """By queue: seconds that 95 % of the jobs that started lately had waited."""
    workers: list[Presence] = field(default_factory=list[Presence])
    running: list[Job] = field(default_factory=list[Job])
    dead: list[Group] = field(default_factory=list[Group])
    dead_cut: bool = False
    """Only the newest dead jobs were read."""
    history: deque[float] = field(default_factory=lambda: deque[float](maxlen=60))
    """Done per second, oldest first."""
    _slow_at: float = -_SLOW
    _dead_total: int | None = None
    _causes: Causes = field(init=False)

    def __post_init__(self) -> None:
        self._causes = Causes(self.store)

    @property
    def queues(self) -> list[QueueStats]:
        """The queues that are shown, by name."""
        return [queue for queue in self.board.queues if self.queue in {None, queue.queue}]

    @property
    def rates(self) -> Rates:
        """The rates of all queues that are shown."""
        by_queue = [self.board.by_queue.get(queue.queue, Rates()) for queue in self.queues]
        return Rates(
            sum(rates.enqueued for rates in by_queue),
            sum(rates.done for rates in by_queue),
            sum(rates.failed for rates in by_queue),
        )

    async def look(self, shown: ListName) -> None:
        """Read the figures, and the list that is shown."""
        await self.board.look(self.store, jobs=0)
        if self.board.trouble is not None:
            return
        self.history.append(self.rates.done)
        if time.monotonic() - self._slow_at >= _SLOW:
            await self._look_at_history()
            self._slow_at = time.monotonic()
        try:
            await self._look_at_list(shown)
        except StoreError as error:
            self.board.trouble = str(error)

    async def _look_at_history(self) -> None:
        """Without history the other figures are still worth showing: a token may lack the right to read it."""
        app = self.target.app
        closed = closed_queues(app.queues.values()) if app is not None else ()
        slots = self.target.settings.concurrency
        try:
            await self._look_at_workers()
            answer = await AutoscaleOperations(self.store).read(self.queues, slots=slots, closed=closed)
            self.demands = {demand.queue: demand for demand in answer.items}
            since = await self.store.now() - _RECENT
            points = await HistoryOperations(self.store).read(since, by="queue", step="all", queue=self.queue)
        except StoreError:
            self.demands, self.waits = {}, {}
            return
        self.waits = {point.name: point.wait.p95 for point in points.items if point.wait.p95 is not None}

    async def _look_at_list(self, shown: ListName) -> None:
        if shown == "workers":
            await self._look_at_workers()
        elif shown == "running":
            self.running = (await self.jobs(Filter(states=frozenset({JobState.RUNNING}), queue=self.queue))).jobs
        else:
            await self._look_at_dead()

    async def _look_at_workers(self) -> None:
        workers = sorted(await self.store.workers(), key=lambda worker: worker.name)
        self.workers = [worker for worker in workers if self.queue is None or self.queue in worker.queues]

    async def _look_at_dead(self) -> None:
        """The bugs of the newest dead jobs, read again when their number has changed."""
        total = sum(queue.dead for queue in self.queues)
        if total == self._dead_total:
            return
        page = await self.jobs(Filter(states=frozenset({JobState.DEAD}), queue=self.queue))
        groups: dict[str, Group] = {}
        for job, bug in await self._causes.of(page.jobs):
            join(groups, job, bug)
        self.dead, self.dead_cut, self._dead_total = most_frequent(groups), page.next is not None, total

    async def jobs(self, where: Filter, *, before: JobId | None = None) -> Page:
        """The newest jobs that fit, as far as a few calls find them."""
        return await pages.fill(self.store, where, before=before, limit=PAGE, calls=_CALLS)

    # ── rows ────────────────────────────────────────────────────────────────

    def queue_rows(self) -> list[Row]:
        """The queues, by name."""
        board = self.board
        return [
            queue_row(
                queue,
                board.by_queue.get(queue.queue),
                self.waits.get(queue.queue),
                self.demands.get(queue.queue),
            )
            for queue in self.queues
        ]

    def list_rows(self, shown: ListName) -> list[Row]:
        """The rows of one list."""
        now = self.board.now
        if now is None:
            return []
        if shown == "workers":
            return [worker_row(worker, now) for worker in self.workers]
        if shown == "running":
            names: dict[UUID, str] = {worker.id: worker.name for worker in self.workers}
            return [running_row(job, names, now) for job in self.running]
        return [dead_row(group, now) for group in self.dead]

    def throughput(self, width: int) -> str:
        """Jobs done per second over the last minute, as a line of blocks."""
        return sparkline(self.history)[-width:]
