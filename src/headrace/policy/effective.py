"""The options that hold for one job: its own, or else its task's, or else the defaults. Pure.

The worker, the server and the explanations ask here, so that they cannot disagree about a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from math import inf

import msgspec

from headrace.errors import BadArguments
from headrace.model.duration import LONGEST
from headrace.model.job import Claimed, Job
from headrace.model.outcome import Outcome, Released, Settlement
from headrace.policy import retry as rule
from headrace.task.codec import decode_options, readable_options
from headrace.task.job_options import JobOptions
from headrace.task.retry import MOST_ATTEMPTS, Retry
from headrace.task.task_options import TaskOptions


class Effective(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What holds for a job. All jobs of a task that have no options of their own share one object."""

    retry: Retry = Retry()
    timeout: float = inf
    """The seconds that one attempt may take."""
    expires: timedelta | datetime | None = None
    """No attempt starts later than this: a time, or so long after the enqueue."""
    deadline: timedelta | datetime | None = None
    """All attempts end before this: a time, or so long after the enqueue."""
    result_ttl: timedelta | None = None
    """None keeps the result as long as the job. Zero keeps no result."""
    redact: tuple[str, ...] = ()
    """The fields, at any depth, whose values are never shown."""
    names: tuple[str, ...] = ()
    """The names of positional arguments that are masked, for readers without the task's signature."""

    @property
    def timed(self) -> bool:
        """Whether an attempt has to look at the store's clock before it starts."""
        return self.expires is not None or self.deadline is not None

    def expires_at(self, job: Claimed | Job) -> datetime | None:
        """The time from which on no attempt of the job starts."""
        return _time(self.expires, job)

    def deadline_at(self, job: Claimed | Job) -> datetime | None:
        """The time at which all attempts of the job are over."""
        return _time(self.deadline, job)

    def startable(self, job: Claimed | Job, now: float) -> float:
        """The seconds in which an attempt may still start."""
        return _until(self.expires_at(job), now)

    def left(self, job: Claimed | Job, now: float) -> float:
        """The seconds to the deadline."""
        return _until(self.deadline_at(job), now)


def _time(limit: timedelta | datetime | None, job: Claimed | Job) -> datetime | None:
    return job.enqueued_at + limit if isinstance(limit, timedelta) else limit


def _until(at: datetime | None, now: float) -> float:
    return inf if at is None else at.timestamp() - now


DEFAULTS = Effective()
"""What holds for the jobs of a task that no code here declares."""


def usual(task: TaskOptions | None) -> Effective:
    """What holds for the jobs of a task that have no options of their own. Callers keep the answer for each task."""
    if task is None:
        return DEFAULTS
    return Effective(
        retry=task.retry,
        timeout=inf if task.timeout is None else task.timeout.total_seconds(),
        expires=task.expires,
        deadline=task.deadline,
        result_ttl=task.result_ttl,
        redact=task.redact,
    )


def effective(job: Claimed | Job, task: Effective = DEFAULTS) -> Effective:
    """What holds for this job; `task` is what `usual` answers.

    Options that cannot be read count as none: the worker that decodes the job's arguments makes such a job dead.
    """
    return task if job.options is None else _merged(job.options, task)


@lru_cache(maxsize=1024)
def _merged(options: bytes, task: Effective) -> Effective:
    own = readable_options(options)
    return Effective(
        retry=task.retry if own.max_attempts is None else _tried(task.retry, own.max_attempts),
        timeout=task.timeout if own.timeout is None else own.timeout,
        expires=_limit(own.expires, task.expires),
        deadline=_limit(own.deadline, task.deadline),
        result_ttl=task.result_ttl if own.result_ttl is None else _span(own.result_ttl),
        redact=tuple(dict.fromkeys((*task.redact, *own.redact))),
        names=own.names,
    )


@lru_cache(maxsize=1024)
def only_marks(options: bytes) -> bool:
    """Whether these options only say where the job comes from, so that it runs like a job without options.

    With OpenTelemetry every job has a trace, and the jobs of one call share these bytes.
    """
    try:
        own = decode_options(options)
    except BadArguments:
        return False
    return own == JobOptions(trace=own.trace, by=own.by, key=own.key)


def _tried(policy: Retry, max_attempts: int) -> Retry:
    # Other programs write to stores, too. A number out of range must not stop the worker that meets it.
    return replace(policy, max_attempts=min(max(1, max_attempts), MOST_ATTEMPTS))


def _limit(own: float | datetime | None, task: timedelta | datetime | None) -> timedelta | datetime | None:
    return task if own is None else own if isinstance(own, datetime) else _span(own)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(max(0.0, seconds), LONGEST.total_seconds()))


def settlement(
    job: Claimed,
    outcome: Outcome,
    own: Effective,
    clock: Callable[[], float],
    *,
    suspect: bool = False,
    advanced: bool = False,
) -> Settlement:
    """What follows from the outcome of an attempt, by the one retry rule.

    `clock` reads the seconds since 1970 of the store's clock. It is read only for jobs with a deadline. `suspect`: the
    attempt ran alone, because an earlier one may have killed its worker. `advanced`: it has finished a step.
    """
    if suspect and isinstance(outcome, Released):
        outcome = Released(suspect=True)
    left = None if own.deadline is None else timedelta(seconds=own.left(job, clock()))
    return rule.decide(job, outcome, own.retry, result_ttl=own.result_ttl, left=left, advanced=advanced)
