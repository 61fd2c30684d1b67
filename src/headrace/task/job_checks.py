"""Whether a job from elsewhere is one that headrace itself could have made: its names, times, sizes and options.

The server checks every job that arrives through either of its APIs, and a schedule's job is checked whenever its record
is read, because a stored value must never stop a worker. Every error is a ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache

from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.model.duration import LONGEST
from headrace.model.job import Due, NewJob
from headrace.model.lane import (
    MAX_UNITS,
    RESERVED,
    Lane,
    check_key,
    check_priority,
    check_queue,
    check_task_name,
    check_tenant,
)
from headrace.model.step import UNDO
from headrace.task.codec import JobOptions, decode_options
from headrace.task.job_options import check_stored


def check_jobs(jobs: Iterable[NewJob], max_payload: int) -> None:
    """Raise ConfigError or PayloadTooLarge for the first job that is not well formed."""
    lane: Lane | None = None
    for job in jobs:
        if job.lane is not lane:  # The jobs of one call share a few lanes.
            lane = job.lane
            check_lane(lane)
        check_job(job)
        if len(job.payload) > max_payload:
            raise PayloadTooLarge(len(job.payload), max_payload)


def check_lane(lane: Lane) -> None:
    """Check its names and its limit keys."""
    check_queue(lane.queue)
    if lane.queue.startswith(RESERVED):
        raise ConfigError(f"the queue {lane.queue} is headrace's own: use another name")
    check_tenant(lane.tenant)
    check_priority(lane.priority)
    for key in lane.limits:
        _check_limit_key(key)


def _check_limit_key(key: str) -> None:
    name, at, cost = check_key(key).partition(":")[0].partition("@")
    if at and not (cost.isascii() and cost.isdigit() and 1 <= int(cost[:10]) <= MAX_UNITS):
        raise ConfigError(
            f"{key!r} is not a limit key: write name, name:key or name@units:key, up to {MAX_UNITS:,} units"
        )
    if not name:
        raise ConfigError(f"{key!r} is not a limit key: it begins with the limit's name")


def check_job(job: NewJob) -> None:
    """Check everything except its lane and its size."""
    if job.task != UNDO or job.wait is None:  # A task that registers an undo job enqueues one of these, too.
        _check_task(job.task)
    if job.due is not None:
        check_due(job.due)
    if job.key is not None:
        check_key(job.key.name)
        check_span(job.key.ttl)
    if job.unique is not None:
        check_key(job.unique.name)
        check_span(job.unique.within)
    if (own := read_options(job)) is not None:
        check_stored(own)


@lru_cache(maxsize=4096)
def _check_task(name: str) -> None:
    check_task_name(name)
    if name.startswith(RESERVED):
        raise ConfigError(f"jobs of {name} are headrace's own: it makes them itself")


def read_options(job: NewJob) -> JobOptions | None:
    """The job's own options. None: they cannot be read, and a worker makes such a job dead."""
    if job.options is None:
        return None
    try:
        return decode_options(job.options)
    except BadArguments:
        return None


def tenant_of(job: NewJob) -> str:
    """The job's tenant, which is not part of the lane in a queue where tenants do not take turns."""
    own = read_options(job)
    return job.lane.tenant or (own.tenant if own is not None and own.tenant is not None else "")


# ── times ────────────────────────────────────────────────────────────────────


def check_time(at: datetime | None) -> None:
    """Stores keep instants, and a time without a time zone does not name one."""
    if at is not None and at.tzinfo is None:
        raise ConfigError(f"{at.isoformat()} needs a time zone, for example 2026-11-15T09:00:00+01:00")


def check_due(due: Due) -> None:
    """A time with a time zone, or a wait of at most ten years."""
    if isinstance(due, datetime):
        check_time(due)
    elif due is not None and abs(due) > LONGEST:
        raise ConfigError(f"a job can be put off for at most {LONGEST.days:,} days")


def check_span(span: timedelta | None) -> None:
    """A time to live."""
    if span is not None and not timedelta(0) <= span <= LONGEST:
        raise ConfigError(f"a time to live is from 0 to {LONGEST.days:,} days")
