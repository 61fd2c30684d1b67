"""How many worker processes the queues of a store need: figures and history are read here, and policy/autoscale estimates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median_low
from typing import Final

import msgspec

from headrace.model.histogram import Histogram
from headrace.model.lease import Presence
from headrace.model.records import QueueStats
from headrace.model.rollup import AttemptEnd, Rollup, RollupKey
from headrace.policy.autoscale import WITHIN, QueueLoad, RecentWork, estimate, whole_workers
from headrace.policy.queue import QueueOptions
from headrace.store.contract import Store

MINUTES: Final = 5
"""Whole minutes of history that an estimate uses, besides the minute that has begun."""
MOST_PAGES: Final = 5
"""Pages of history that one estimate reads, at most. If there are more, it uses fewer minutes."""
_RETURNED: Final = (AttemptEnd.FAILED, AttemptEnd.SNOOZED)


class QueueDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue needs, and what the estimate assumes."""

    queue: str
    """The name of the queue."""
    ready: int
    """Jobs that can start as soon as a worker has a free slot."""
    running: int
    """Jobs that workers have claimed."""
    oldest_seconds: float | None
    """Seconds that the longest waiting ready job has waited."""
    stopped: bool
    """The queue is paused, or outside its open hours."""
    seconds_to_drain: float | None
    """Seconds until the jobs that wait now have started, at the present pace; 0: none waits; null: not known."""
    workers: int
    """Worker processes that the queue needs."""
    jobs_per_second: float | None
    """Attempts that ended per second in the last minutes; null: none ended."""
    enqueued_per_second: float | None
    """Jobs that were enqueued per second; null: not known, so the estimate assumes `jobs_per_second`."""
    run_seconds: float | None
    """The mean time of an attempt; null: not known, so the estimate assumes one slot for each job."""
    slots: int
    """Jobs that one worker process runs at the same time."""


class AutoscaleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Queues by name."""

    items: list[QueueDemand]
    workers: int
    """Worker processes that these queues need together, if every process serves all of them."""
    next: None = None
    """The list is whole, so there is no next page."""


class AutoscaleOperations:
    """Estimates what the queues of one store need."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def recent(self) -> dict[str, RecentWork]:
        """The attempts of the last minutes, by queue. It reads at most MOST_PAGES pages of history."""
        now = (await self._store.now()).timestamp()
        minute = int(now // 60)
        rollups, cut = await self._rollups(minute - MINUTES, minute + 1)
        groups: dict[str, list[Rollup]] = {}
        for rollup in rollups:
            groups.setdefault(rollup.queue, []).append(rollup)
        until = now if cut is None else 60.0 * cut
        return {queue: _work(group, until) for queue, group in groups.items()}

    async def _rollups(self, first: int, last: int) -> tuple[list[Rollup], int | None]:
        """Rollups of these minutes, and the minute at which a long history was cut; None: it is whole.

        A fold between two pages may hide rollups or show them twice, so that the reading begins again.
        """
        rollups: list[Rollup] = []
        after: RollupKey | None = None
        folds: int | None = None
        for _ in range(MOST_PAGES):
            page = await self._store.read_history(first, last, after=after)
            if folds is not None and folds != page.folds:
                rollups.clear()
                after = folds = None
                continue
            rollups += page.rollups
            folds, after = page.folds, page.next
            if after is None:
                return rollups, None
        # The last minute may have further rollups, so only the minutes before it count.
        cut = rollups[-1].start if rollups else first
        whole = [rollup for rollup in rollups if rollup.start < cut]
        return (whole, cut) if whole else (rollups, cut + 1)

    async def read(self, stats: Iterable[QueueStats], *, slots: int, closed: Collection[str] = ()) -> AutoscaleAnswer:
        """What these queues need. `demands` describes the arguments."""
        workers = await self._store.workers()
        return demands(stats, recent=await self.recent(), workers=workers, slots=slots, closed=closed)


def demands(
    stats: Iterable[QueueStats],
    *,
    recent: Mapping[str, RecentWork],
    workers: Sequence[Presence],
    slots: int,
    within: float = WITHIN,
    most: int | None = None,
    enqueued: Mapping[str, float] | None = None,
    closed: Collection[str] = (),
) -> AutoscaleAnswer:
    """What these queues need, so that the jobs that wait now have started within so many seconds.

    `slots`: the slots of a worker process, for queues that no worker serves. `most`: the workers of one queue and of all
    queues together, at most. `enqueued`: jobs per second by queue. `closed`: queues outside their open hours.
    """
    servers: dict[str, list[Presence]] = {}
    for worker in workers:
        for name in worker.queues:
            servers.setdefault(name, []).append(worker)
    items: list[QueueDemand] = []
    processes = 0.0
    for queue in stats:
        name, work = queue.queue, recent.get(queue.queue)
        serving = servers.get(name, [])
        per_process = median_low(worker.slots for worker in serving) if serving else slots
        load = QueueLoad(
            ready=queue.ready,
            running=queue.running,
            slots=per_process,
            live_slots=sum(worker.slots for worker in serving) if serving else None,
            stopped=queue.paused or name in closed or any(f"closed {name}" in worker.hindered for worker in serving),
            recent=work,
            enqueued=None if enqueued is None else enqueued.get(name),
        )
        need = estimate(load, within)
        processes += need.processes
        items.append(
            QueueDemand(
                queue=name,
                ready=queue.ready,
                running=queue.running,
                oldest_seconds=None if queue.oldest_ready is None else round(queue.oldest_ready.total_seconds(), 3),
                stopped=load.stopped,
                seconds_to_drain=_rounded(need.seconds_to_drain),
                workers=whole_workers(need.processes, most),
                jobs_per_second=None if work is None else _rounded(work.ended),
                enqueued_per_second=_rounded(load.enqueued),
                run_seconds=None if work is None else _rounded(work.run),
                slots=per_process,
            )
        )
    return AutoscaleAnswer(items=items, workers=whole_workers(processes, most))


def closed_queues(queues: Iterable[QueueOptions]) -> set[str]:
    """The queues that are outside their open hours now."""
    now = datetime.now(UTC)
    return {queue.name for queue in queues if queue.open is not None and not queue.open.is_open(now)}


def _work(rollups: Sequence[Rollup], until: float) -> RecentWork:
    """The work of one queue, from the first minute in which an attempt ended until this time."""
    run = Histogram()
    for rollup in rollups:
        try:
            run.merge_packed(rollup.run)
        except ValueError:
            continue  # Only a newer version can read its times.
    seconds = max(60.0, until - 60.0 * min(rollup.start for rollup in rollups))
    return RecentWork(
        ended=sum(rollup.count for rollup in rollups) / seconds,
        returned=sum(rollup.count for rollup in rollups if rollup.end in _RETURNED) / seconds,
        run=run.mean,
    )


def _rounded(figure: float | None) -> float | None:
    """Three figures, because history is within 5 %."""
    return None if figure is None else float(f"{figure:.3g}")
