"""Canaries: a few dead jobs that are replayed first, and whether the rest follows. No effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import Job, JobState
from headrace.model.outcome import EXPIRED

MOST_CANARIES = 1000


@dataclass(frozen=True, slots=True)
class Canary:
    """Replay `count` jobs first, wait for their end, and go on only if at most the share `tolerate` died again."""

    count: int = 10
    tolerate: float = 0.1
    patience: timedelta = timedelta(minutes=10)
    """If they have not ended by then, the rest stays dead."""

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or not 1 <= self.count <= MOST_CANARIES:
            raise ConfigError(
                f"canary = {self.count!r}: a whole number from 1 to {MOST_CANARIES:,}; leave it out to replay without"
            )
        if not isinstance(self.tolerate, int | float) or not 0 <= self.tolerate < 1:
            raise ConfigError(f"tolerate = {self.tolerate!r}: the share that may die again, from 0 to less than 1")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the canaries."""

    tried: int
    done: int = 0
    dead: int = 0
    expired: int = 0
    """They expired before they could start again. They show nothing, and are no dead letters any more."""
    gone: int = 0
    """Cancelled or deleted meanwhile."""

    @property
    def waiting(self) -> int:
        return self.tried - self.done - self.dead - self.expired - self.gone


def count(jobs: Sequence[Job | None]) -> Trial:
    """Count the canaries by state. None: a job that no longer exists."""
    states = [None if job is None else job.state for job in jobs]
    gone = states.count(None) + states.count(JobState.CANCELLED)
    expired = sum(job is not None and job.state is JobState.CANCELLED and job.note == EXPIRED for job in jobs)
    return Trial(
        tried=len(states),
        done=states.count(JobState.DONE),
        dead=states.count(JobState.DEAD),
        expired=expired,
        gone=gone - expired,
    )


def too_many(trial: Trial, canary: Canary) -> bool:
    """Whether more died again or expired than `tolerate` allows."""
    return trial.dead + trial.expired > canary.tolerate * trial.tried


def verdict(trial: Trial, canary: Canary) -> str | None:
    """Why the replay stops. None: it goes on."""
    if too_many(trial, canary):
        lost = [f"{trial.dead} of {trial.tried} canaries died again"] if trial.dead or not trial.expired else []
        if trial.expired:
            lost.append(f"{trial.expired} of {trial.tried} canaries had expired before they could start again")
        return f"{' and '.join(lost)}, at most {int(canary.tolerate * trial.tried)} may: the rest stays dead"
    if trial.waiting:
        return (
            f"{trial.waiting} of {trial.tried} canaries have not ended in {duration.show(canary.patience)}: the rest stays dead; "
            "does a worker serve their queue, or do they wait for a retry?"
        )
    if not trial.done and trial.gone:
        return f"all {trial.tried} canaries were cancelled or deleted and have shown nothing: the rest stays dead"
    return None
