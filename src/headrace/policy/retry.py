"""The retry rule: the one place that decides what follows from an outcome."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

from headrace.model.job import Claimed, Failure, JobState
from headrace.model.outcome import (
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
from headrace.task.retry import Retry

DEADLINE = "deadline"
"""The note of a job that is dead because its next attempt would begin after its deadline."""

WORKER_LOST = "worker_lost"
"""The kind of a failure by a worker's death, and the note of a job that is dead after its own crashes."""


_NO_TIME = timedelta(0)


def done(result: bytes | None, result_ttl: timedelta | None) -> Finish:
    """The end of a successful job. With a time to live of zero, only the fact that there was a result is stored."""
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
    advanced: bool = False,
    rand: Callable[[], float] = random.random,
) -> Settlement:
    """What follows from an outcome: for failures, timeouts, crashes and lost leases alike. It has no effects.

    `left` is the time to the job's deadline: a job whose next attempt would begin after it is dead now. `advanced`: the
    attempt has finished a step, so its failure is the first one behind that step.
    """
    match outcome:
        case Succeeded(result=None):
            return DONE
        case Succeeded(result=result):
            return done(result, result_ttl)
        case Failed():
            return _after_failure(0 if advanced else job.failures, job.crashes, outcome, policy, left, rand)
        case Snoozed(due=timedelta() as due) if left is not None and due >= left:
            return Finish(JobState.DEAD, note=DEADLINE)
        case Snoozed(due=due, note=note, gates=gates, waits=waits):
            # A job that waits for a gate runs again at its deadline, so that it ends.
            return Again(
                job.failures, job.crashes, due=left if due is None else due, note=note, gates=gates, waits=waits
            )
        case Cancelled(reason=reason):
            return Finish(JobState.CANCELLED, note=reason or None)
        case Released(suspect=suspect):
            return Again(job.failures, job.crashes, suspect=suspect)
        case Lost():
            return _after_loss(job, outcome, policy)


def _after_failure(
    before: int, crashes: int, outcome: Failed, policy: Retry, left: timedelta | None, rand: Callable[[], float]
) -> Settlement:
    failures = before + 1
    if outcome.final or failures >= policy.max_attempts:
        note = outcome.reason or ("final" if outcome.final else "max_attempts")
        return Finish(JobState.DEAD, note=note, failure=outcome.failure, failures=failures)
    delay = outcome.retry_after if outcome.retry_after is not None else policy.delay(failures, rand)
    if left is not None and delay >= left:
        return Finish(JobState.DEAD, note=DEADLINE, failure=outcome.failure, failures=failures)
    return Again(failures, crashes, due=delay, failure=outcome.failure)


def _after_loss(job: Claimed, outcome: Lost, policy: Retry) -> Settlement:
    if not outcome.own:
        # One job of many killed the worker. Each is claimed alone now, so the next crash names its cause.
        return Again(job.failures, job.crashes, suspect=True)
    crashes = job.crashes + 1
    failure = Failure(attempt=job.attempt, kind=WORKER_LOST, message=outcome.cause, traceback="", at=outcome.at)
    if crashes >= policy.max_crashes:
        return Finish(JobState.DEAD, note=WORKER_LOST, failure=failure, crashes=crashes)
    return Again(job.failures, crashes, suspect=True, failure=failure)
