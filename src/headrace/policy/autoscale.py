"""Autoscaling: from the figures of a queue, how soon it drains and how many worker processes it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

WITHIN: Final = 60.0
"""Seconds in which a backlog should drain, if the caller does not choose."""
PER_PROCESS: Final = 10_000
"""Jobs that one worker process ends per second, at most, however short they are."""
MEASURED: Final = 300.0
"""Seconds over which arrivals are measured, at most."""
_SHORTEST: Final = 60.0
"""Seconds over which arrivals are measured, at least. One large batch would otherwise look like a steady flow."""
_SPACING: Final = 10.0
"""Seconds between two readings that are kept."""
_ROUNDING: Final = 1e-9
"""A number that exceeds a whole one by no more than this counts as the whole one, because sums of fractions are not exact."""


class RecentWork(NamedTuple):
    """The attempts of one queue in the last minutes."""

    ended: float
    """Attempts that ended, per second."""
    returned: float
    """Those of them after which the job runs again, per second."""
    run: float | None
    """The mean time of an attempt in seconds. None: it is not known."""


class QueueLoad(NamedTuple):
    """What is known of one queue."""

    ready: int
    running: int
    slots: int
    """Jobs that one worker process runs at the same time."""
    live_slots: int | None = None
    """The slots of all workers that serve the queue. None: not known."""
    stopped: bool = False
    """The queue is paused, or outside its open hours."""
    recent: RecentWork | None = None
    """None: no attempt ended in the last minutes."""
    enqueued: float | None = None
    """Jobs that are enqueued, per second. None: not known."""


class Estimate(NamedTuple):
    """What a queue needs."""

    seconds_to_drain: float | None
    """Seconds until the jobs that wait now have started. None: not known."""
    processes: float
    """Worker processes, not rounded, so that the needs of several queues can be added."""


def estimate(load: QueueLoad, within: float = WITHIN) -> Estimate:
    """How soon the queue drains, and what it takes to drain it within so many seconds.

    The estimate assumes that

    - jobs run as long as those that ended in the last minutes. Without any, each job takes `within`, and a slot of its own;
    - jobs go on coming in as they do now. If that is not known, as many come in as ended in the last minutes;
    - all slots of a process can run jobs of this queue, and one process ends at most PER_PROCESS jobs per second;
    - no limit or pause of a task or tenant holds the ready jobs back;
    - for `seconds_to_drain`, the workers stay as they are. Jobs that come later wait behind those that wait now.

    A stopped queue drains at no known time, and needs processes only for the jobs that still run.
    """
    # Workers claim short jobs ahead, so more jobs may be claimed than slots exist.
    busy = min(load.running, load.live_slots) if load.live_slots else load.running
    slots = max(1, load.slots)
    run = None
    if load.recent is not None and load.recent.run is not None:
        run = max(load.recent.run, slots / PER_PROCESS)
    return Estimate(_seconds_to_drain(load, busy, run), _slots_needed(load, busy, run, within) / slots)


def _seconds_to_drain(load: QueueLoad, busy: int, run: float | None) -> float | None:
    if load.ready <= 0:
        return 0.0
    if load.stopped or load.recent is None:
        return None
    # After a quiet time, the slots that are busy now say more than the attempts that ended.
    pace = max(load.recent.ended, busy / run if run else 0.0)
    return load.ready / pace if pace > 0 else None


def _slots_needed(load: QueueLoad, busy: int, run: float | None, within: float) -> float:
    if load.stopped:
        return float(busy)
    # One slot runs within/run jobs in the time. A job that takes longer still needs no more than one slot.
    share = 1.0 if run is None else min(1.0, run / within) if within > 0 else 1.0
    flow = 0.0 if run is None else _coming(load) * run
    # Running jobs are part of the flow, so the larger one counts and not the sum.
    return max(float(busy), max(busy * share, flow) + max(0, load.ready) * share)


def _coming(load: QueueLoad) -> float:
    """Attempts per second that become due."""
    if load.recent is None:
        return load.enqueued or 0.0
    return load.recent.ended if load.enqueued is None else load.enqueued + load.recent.returned


def whole_workers(processes: float, most: int | None = None) -> int:
    """Whole processes, and not more than `most`. Any need takes at least one."""
    if processes <= 0:
        return 0
    wanted = max(1, ceil(processes - _ROUNDING))
    return wanted if most is None else min(wanted, max(0, most))


class Arrivals:
    """Measures how many jobs are enqueued per second, from totals that only grow."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, Mapping[str, int]]] = deque()

    def measure(self, at: float, totals: Mapping[str, int]) -> dict[str, float]:
        """Jobs per second by queue, since a reading one to five minutes ago. Empty: there is none yet.

        `at`: the time in seconds, by a clock that never goes back.
        """
        readings = self._readings
        while readings and (at - readings[0][0] > MEASURED or at < readings[0][0]):
            readings.popleft()
        if not readings or at - readings[-1][0] >= _SPACING:
            readings.append((at, dict(totals)))
        first, before = readings[0]
        if at - first < _SHORTEST:
            return {}
        # A total that fell belongs to a store that was emptied.
        return {
            queue: (total - before.get(queue, 0)) / (at - first)
            for queue, total in totals.items()
            if total >= before.get(queue, 0)
        }
