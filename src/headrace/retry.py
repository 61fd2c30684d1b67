"""The retry rule: the one place that decides what follows from an outcome."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from headrace import duration
from headrace.errors import ConfigError
from headrace.job import Claimed, Failure, JobState
from headrace.outcome import (
    DONE,
    Again,
    Cancelled,
    Failed,
    Finish,
    Lost,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    Succeeded,
)

DEADLINE = "deadline"
"""The note of a job that is dead because its next attempt would begin after its deadline."""

WORKER_LOST = "worker_lost"
"""The kind of a failure that is a worker's death, and the note of a job that is dead of its own crashes."""

_TOO_MUCH = 600
"""e to this is a float, and more than any cap."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When a failed job is tried again: after `base × factor^(failures-1) × jitter`, drawn from what lies below `cap`."""

    max_attempts: int = 5
    """Failures after which the job is dead. 1: never tried again."""
    base: duration.Duration = "2s"
    factor: float = 2.0
    cap: duration.Duration = "1h"
    jitter: tuple[float, float] = (0.5, 1.5)
    never: tuple[type[BaseException], ...] = ()
    """Exceptions that make the job dead at once."""
    max_crashes: int = 3
    """Worker deaths of the job's own after which it is dead."""
    _base: timedelta = field(init=False, repr=False, compare=False)
    _cap: timedelta = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_base", duration.parse(self.base, name="Retry.base"))
        object.__setattr__(self, "_cap", duration.parse(self.cap, name="Retry.cap"))
        for name in ("max_attempts", "max_crashes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
                raise ConfigError(f"Retry.{name} = {value!r}: a whole number from 1 to 1000")
        if not 1 <= self.factor <= 100:
            raise ConfigError(f"Retry.factor = {self.factor!r}: from 1 to 100")
        low, high = self.jitter
        if not 0 <= low <= high <= 10:
            raise ConfigError(f"Retry.jitter = {self.jitter!r}: (low, high) with 0 <= low <= high <= 10")
        for kind in self.never:
            if not isinstance(kind, type) or not issubclass(kind, BaseException):
                raise ConfigError(f"Retry.never: {kind!r} is no exception class")

    def delay(self, failures: int, rand: Callable[[], float]) -> timedelta:
        """How long to wait after the `failures`-th failure; `rand` gives 0 … 1."""
        # Growing stops at the cap before the power can overflow.
        steps = failures - 1
        growth = self.factor**steps if steps * math.log(self.factor) < _TOO_MUCH else 1e9
        cap = self._cap.total_seconds()
        seconds = min(self._base.total_seconds() * min(growth, 1e9), cap)
        low, high = (seconds * bound for bound in self.jitter)
        # The cap bounds the range, not the number drawn: jobs that failed together must not all return after the cap.
        if low < high:
            low, high = low if low < cap else cap * low / high, min(high, cap)
        return min(timedelta(seconds=low + (high - low) * rand()), self._cap)


_NO_TIME = timedelta(0)


def done(result: bytes | None, result_ttl: timedelta | None) -> Finish:
    """The end of a job that went well. With a time to live of zero the result is never written, only that there was one."""
    if result is None:
        return DONE
    return Finish(JobState.DONE, result=result if result_ttl != _NO_TIME else b"", result_ttl=result_ttl)


def decide(
    job: Claimed,
    outcome: Outcome,
    policy: Retry,
    *,
    result_ttl: timedelta | None = None,
    left: timedelta | None = None,
    rand: Callable[[], float] = random.random,
) -> Settlement:
    """What follows from an outcome: for failures, timeouts, crashes and lost leases alike. Pure but for `rand`.

    `left` is the time to the job's deadline: whatever would begin after it is dead now.
    """
    match outcome:
        case Succeeded(result=None):
            return DONE
        case Succeeded(result=result):
            return done(result, result_ttl)
        case Failed():
            return _after_failure(job, outcome, policy, left, rand)
        case Snoozed(due=timedelta() as due) if left is not None and due >= left:
            return Finish(JobState.DEAD, note=DEADLINE)
        case Snoozed(due=due, note=note):
            return Again(job.failures, job.crashes, due=due, note=note)
        case Cancelled(reason=reason):
            return Finish(JobState.CANCELLED, note=reason or None)
        case Released(suspect=suspect):
            return Again(job.failures, job.crashes, suspect=suspect)
        case Lost():
            return _after_loss(job, outcome, policy)


def _after_failure(
    job: Claimed, outcome: Failed, policy: Retry, left: timedelta | None, rand: Callable[[], float]
) -> Settlement:
    failures = job.failures + 1
    if outcome.final or failures >= policy.max_attempts:
        note = outcome.reason or ("final" if outcome.final else "max_attempts")
        return Finish(JobState.DEAD, note=note, failure=outcome.failure, failures=failures)
    delay = outcome.retry_after if outcome.retry_after is not None else policy.delay(failures, rand)
    if left is not None and delay >= left:
        return Finish(JobState.DEAD, note=DEADLINE, failure=outcome.failure, failures=failures)
    return Again(failures, job.crashes, due=delay, failure=outcome.failure)


def _after_loss(job: Claimed, outcome: Lost, policy: Retry) -> Settlement:
    if not outcome.own:
        # One job of many killed the worker. Each is claimed alone now, so the next crash names its cause.
        return Again(job.failures, job.crashes, suspect=True)
    crashes = job.crashes + 1
    failure = Failure(attempt=job.attempt, kind=WORKER_LOST, message=outcome.cause, traceback="", at=outcome.at)
    if crashes >= policy.max_crashes:
        return Finish(JobState.DEAD, note=WORKER_LOST, failure=failure, crashes=crashes)
    return Again(job.failures, crashes, suspect=True, failure=failure)
