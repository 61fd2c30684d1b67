"""The data of a live view: snapshots of a store, and rates as the differences between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.errors import StoreError
from headrace.model.job import Job, JobState
from headrace.model.records import Filter, Pause, QueueStats
from headrace.operate.limits import LimitEntry, Limits
from headrace.operate.schedules import Schedules
from headrace.policy.schedule_entry import ScheduleEntry
from headrace.store import pages

if TYPE_CHECKING:
    from headrace.store.contract import Store

_BLOCKS = "▁▂▃▄▅▆▇█"
_TOTALS = ("enqueued_total", "done_total", "failed_total")
_CALLS = 5
"""Calls of `find` for each list of a snapshot."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second, between two snapshots."""

    enqueued: float = 0.0
    done: float = 0.0
    failed: float = 0.0


@dataclass(slots=True)
class Board:
    """The latest snapshot of a store, and rates from earlier ones."""

    now: datetime | None = None
    queues: list[QueueStats] = field(default_factory=list[QueueStats])
    rates: Rates = field(default_factory=Rates)
    by_queue: dict[str, Rates] = field(default_factory=dict[str, Rates])
    running: list[Job] = field(default_factory=list[Job])
    retrying: list[Job] = field(default_factory=list[Job])
    dead: list[Job] = field(default_factory=list[Job])
    waiting: Job | None = None
    """A ready job, as an example for `jobs explain`."""
    pauses: list[Pause] = field(default_factory=list[Pause])
    limits: list[LimitEntry] = field(default_factory=list[LimitEntry])
    schedules: list[ScheduleEntry] = field(default_factory=list[ScheduleEntry])
    trouble: str | None = None
    """Why the last snapshot failed. The figures are older then."""
    history: deque[float] = field(default_factory=lambda: deque[float](maxlen=60))
    """Done per second, oldest first."""

    async def look(self, store: Store, *, jobs: int) -> None:
        """Take a new snapshot with up to `jobs` jobs of each kind. The old figures stay while the store is away."""
        try:
            now = await store.now()
            stats = sorted((await store.stats()).queues, key=lambda queue: queue.queue)
            if jobs:
                self.running = await _newest(store, JobState.RUNNING, jobs)
                waiting = await _newest(store, JobState.SCHEDULED, 10 * jobs)
                self.retrying = [job for job in waiting if job.failures][:jobs]
                dead = await _newest(store, JobState.DEAD, jobs)
                self.dead = [job for job in await store.get([job.id for job in dead]) if job is not None]
                self.waiting = next(iter(await _newest(store, JobState.READY, 1)), None)
                self.pauses = sorted(await store.pauses(), key=lambda pause: (pause.kind, pause.name))
                self.limits = list((await Limits(store).all()).values())
                self.schedules = list((await Schedules(store).all()).values())
        except StoreError as error:
            self.trouble = str(error)
            return
        self.trouble = None
        self._measure(stats, now)

    def _measure(self, stats: list[QueueStats], now: datetime) -> None:
        if self.now is not None and now > self.now:
            length = (now - self.now).total_seconds()
            before = {queue.queue: queue for queue in self.queues}
            self.by_queue = {
                queue.queue: _between(before.get(queue.queue, QueueStats(queue=queue.queue)), queue, length)
                for queue in stats
            }
            rates = self.by_queue.values()
            self.rates = Rates(
                sum(rate.enqueued for rate in rates),
                sum(rate.done for rate in rates),
                sum(rate.failed for rate in rates),
            )
            self.history.append(self.rates.done)
        self.queues, self.now = stats, now

    def total(self, name: str) -> int:
        """One figure over all queues."""
        return sum(getattr(queue, name) for queue in self.queues)


async def _newest(store: Store, state: JobState, limit: int) -> list[Job]:
    """The newest jobs in a state, as far as a few calls find them."""
    page = await pages.fill(store, Filter(states=frozenset({state})), limit=limit, calls=_CALLS)
    return page.jobs


def _between(before: QueueStats, after: QueueStats, length: float) -> Rates:
    return Rates(*(max(0, getattr(after, name) - getattr(before, name)) / length for name in _TOTALS))


def sparkline(values: deque[float] | list[float]) -> str:
    """The values as a row of blocks, the highest filling its cell."""
    top = max(values, default=0.0)
    if top <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, round(value / top * (len(_BLOCKS) - 1)))] for value in values)


def rate(value: float) -> str:
    """`0`, `3.5`, `120`, `12,300`."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"
