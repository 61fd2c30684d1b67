"""How often a worker looks for jobs without a hint."""

from __future__ import annotations

from typing import Final

from headrace.worker.state import WorkerState

SELDOM: Final = 5
"""How many times less often a worker looks while hints of other processes reach its store object, or while others do the upkeep."""
RARELY: Final = 60
"""The same while both holds, or while heartbeats tell the worker whether there is something to claim."""


def poll_seconds(state: WorkerState) -> float:
    """Seconds that a worker sleeps without a hint."""
    if not state.hears:
        times = 1 if state.upkeep else SELDOM
    else:
        times = SELDOM if state.upkeep and not _knows_ready(state) else RARELY
    return times * state.settings.poll.total_seconds()


def repeat_seconds(state: WorkerState) -> float:
    """Seconds between two calls that repeat hints."""
    return SELDOM * state.settings.poll.total_seconds()


def _knows_ready(state: WorkerState) -> bool:
    """Whether heartbeats make up for lost hints as soon as polls would."""
    return state.ready_known and state.settings.heartbeat <= SELDOM * state.settings.poll
