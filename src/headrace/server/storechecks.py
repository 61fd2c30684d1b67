"""What of a store's call may come in: figures and jobs that no store of ours would send are refused or cut here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from headrace.codec import decode_options
from headrace.duration import LONGEST
from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.job import MAX_BATCH, Batch, NewJob, split_id
from headrace.lane import Lane, check_key, check_priority, check_queue, check_task_name, check_tenant
from headrace.webhooks import TASK, all_deliveries

MOST: Final = 10_000
"""Of anything in one call."""


def check_lanes(lanes: Sequence[Lane]) -> None:
    """A ConfigError, which is a 422, for what no client of ours would send."""
    for lane in lanes:
        check_queue(lane.queue)
        check_tenant(lane.tenant)
        check_priority(lane.priority)
        for key in lane.limits:
            check_key(key)


def check_jobs(batch: Batch, max_payload: int) -> None:
    if split_id(batch.id)[1] or len(batch.jobs) > MAX_BATCH:
        raise ConfigError(f"a batch has at most {MAX_BATCH:,} jobs, and an id whose last 16 bits are 0")
    if any(job.task == TASK for job in batch.jobs) and not all_deliveries(batch):
        raise ConfigError(f"jobs of {TASK} tell of the ends of others: headrace makes them itself")
    for job in batch.jobs:
        check_task_name(job.task)
        if job.key is not None:
            check_key(job.key.name)
        if job.unique is not None:
            check_key(job.unique.name)
        if len(job.payload) > max_payload:
            raise PayloadTooLarge(len(job.payload), max_payload)


def bounded(limit: int) -> int:
    """No call takes longer than this server's own would."""
    return max(0, min(limit, MOST))


def lease_time(ttl: timedelta) -> timedelta:
    if not timedelta(0) <= ttl <= LONGEST:
        raise ConfigError(f"a lease lasts from 0 to {LONGEST.days:,} days")
    return ttl


def tenant_of(job: NewJob) -> str | None:
    """Whose job it is; where tenants do not take turns that is no part of its lane."""
    try:
        return job.lane.tenant or decode_options(job.options).tenant or ""
    except BadArguments as error:
        raise ConfigError(str(error)) from None
