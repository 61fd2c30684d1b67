"""How often a worker looks for jobs without a hint."""

from __future__ import annotations

from typing import Final

from headrace.worker.state import WorkerState

SELDOM: Final = 5
"""How many times less often a worker looks while hints of other processes reach its store object, or while others do the upkeep."""
RARELY: Final = 60
"""The same while both holds. The workers that do the upkeep look often, also for hints that were lost."""


def poll_seconds(state: WorkerState) -> float:
    """Seconds that a worker sleeps without a hint."""
    on_duty, otherwise = (SELDOM, RARELY) if state.hears else (1, SELDOM)
    return (on_duty if state.upkeep else otherwise) * state.settings.poll.total_seconds()


def repeat_seconds(state: WorkerState) -> float:
    """Seconds between two calls that repeat hints."""
    return SELDOM * state.settings.poll.total_seconds()
