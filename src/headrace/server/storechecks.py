"""What of a store's call may come in: names, figures, times and jobs that no store of ours would send are refused or cut here.

Everything raised is a ConfigError, which is a 422: the caller is wrong, not the store behind this server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from headrace.codec import decode_options
from headrace.duration import LONGEST
from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.job import MAX_BATCH, Batch, Due, Failure, NewJob, split_id
from headrace.lane import Lane, check_key, check_priority, check_task_name, check_tenant
from headrace.lane import check_queue as _check_queue
from headrace.lease import Ask, Presence, Report
from headrace.limit import MAX_UNITS
from headrace.limits import check_limit
from headrace.outcome import DONE, Finish, Settlement
from headrace.store.terms import Filter, LimitRule, PauseKind, Retention
from headrace.webhooks import TASK, all_deliveries

MOST: Final = 10_000
"""Of anything in one call."""
MOST_QUEUES: Final = 1000
LARGEST: Final = 2**31 - 1
"""Of any count that is kept."""

check_queue: Callable[[str], str] = lru_cache(maxsize=4096)(_check_queue)
"""Workers name the same few all the time."""


# ── enqueue ──────────────────────────────────────────────────────────────────


def check_lanes(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        check_queue(lane.queue)
        check_tenant(lane.tenant)
        check_priority(lane.priority)
        for key in lane.limits:
            _check_limit_key(key)


def _check_limit_key(key: str) -> None:
    """A cost that is no number would stop every claim that comes across it."""
    name, at, cost = check_key(key).partition(":")[0].partition("@")
    if at and not (cost.isascii() and cost.isdigit() and 1 <= int(cost[:10]) <= MAX_UNITS):
        raise ConfigError(f"{key!r} is no limit key: write name, name:key or name@units:key, up to {MAX_UNITS:,} units")
    if not name:
        raise ConfigError(f"{key!r} is no limit key: it begins with the limit's name")


def check_jobs(batch: Batch, max_payload: int) -> None:
    if split_id(batch.id)[1] or len(batch.jobs) > MAX_BATCH:
        raise ConfigError(f"a batch has at most {MAX_BATCH:,} jobs, and an id whose last 16 bits are 0")
    if any(job.task == TASK for job in batch.jobs) and not all_deliveries(batch):
        raise ConfigError(f"jobs of {TASK} tell of the ends of others: headrace makes them itself")
    for job in batch.jobs:
        check_task_name(job.task)
        if job.due is not None:
            _check_due(job.due)
        if job.key is not None:
            check_key(job.key.name)
            _check_span(job.key.ttl)
        if job.unique is not None:
            check_key(job.unique.name)
            _check_span(job.unique.within)
        if len(job.payload) > max_payload:
            raise PayloadTooLarge(len(job.payload), max_payload)


def tenant_of(job: NewJob) -> str | None:
    """Whose job it is; where tenants do not take turns that is no part of its lane."""
    try:
        return job.lane.tenant or decode_options(job.options).tenant or ""
    except BadArguments as error:
        raise ConfigError(str(error)) from None


# ── workers ──────────────────────────────────────────────────────────────────


def check_queues(queues: Sequence[str]) -> None:
    if len(queues) > MOST_QUEUES:
        raise ConfigError(f"a call names at most {MOST_QUEUES:,} queues")
    for queue in queues:
        check_queue(queue)


def check_ask(ask: Ask) -> None:
    check_queues(ask.queues)
    if ask.tenant is not None:
        check_tenant(ask.tenant)
    if len(ask.bands) > MOST:
        raise ConfigError(f"a claim has at most {MOST:,} bands")
    for band in ask.bands:
        check_queues(band.queues)
        _check_figures(band.share)
        _check_figures(band.lowest, band.highest, least=-LARGEST)
    for queue, tenants in ask.weights.items():
        check_queue(queue)
        _check_weights(tenants)


def _check_weights(tenants: Mapping[str, int]) -> None:
    for tenant in tenants:
        check_tenant(tenant)
    _check_figures(*tenants.values())


def check_presence(presence: Presence) -> None:
    check_queues(presence.queues)
    for task in presence.tasks:
        check_task_name(task)
    _check_figures(presence.slots, presence.running)
    check_time(presence.started_at)


def check_settlement(settlement: Settlement) -> None:
    if settlement is DONE:
        return
    if isinstance(settlement, Finish):
        _check_span(settlement.result_ttl)
        _check_figures(settlement.failures or 0, settlement.crashes or 0)
    else:
        _check_due(settlement.due)
        _check_figures(settlement.failures, settlement.crashes)
    if settlement.failure is not None:
        _check_failure(settlement.failure)


def _check_failure(failure: Failure) -> None:
    check_time(failure.at)
    _check_figures(failure.attempt)


def check_report(report: Report) -> None:
    if report.progress is not None and not 0 <= report.progress <= 1:
        raise ConfigError("progress is a number from 0 to 1")
    for line in report.lines:
        check_time(line.at)


def lease_time(ttl: timedelta) -> timedelta:
    if not timedelta(0) <= ttl <= LONGEST:
        raise ConfigError(f"a lease lasts from 0 to {LONGEST.days:,} days")
    return ttl


# ── onlookers and operators ──────────────────────────────────────────────────


def bounded(limit: int) -> int:
    """No call takes longer than this server's own would."""
    return max(0, min(limit, MOST))


def check_filter(where: Filter) -> None:
    if where.queue is not None:
        check_queue(where.queue)
    if where.task is not None:
        check_task_name(where.task)
    if where.tenant is not None:
        check_tenant(where.tenant)
    check_time(where.since)
    check_time(where.until)


_PAUSED: Final[Mapping[PauseKind, Callable[[str], str]]] = {
    "queue": check_queue,
    "tenant": check_tenant,
    "task": check_task_name,
}


def check_pause(name: str, kind: PauseKind, until: datetime | None = None) -> None:
    _PAUSED[kind](name)
    check_time(until)


def check_retention(keep: Retention) -> None:
    for queue in keep.dead_by_queue:
        check_queue(queue)


def check_rule(name: str, rule: LimitRule | None) -> None:
    check_limit(name)
    if rule is None:
        return
    check_time(rule.closed_until)
    if rule.concurrency is not None and not 0 <= rule.concurrency <= MAX_UNITS:
        raise ConfigError(f"concurrency: a whole number up to {MAX_UNITS:,}")
    if rule.rate is not None and not 0 < rule.rate < math.inf:
        raise ConfigError("rate: units per second, more than 0")
    if not 0 <= rule.burst <= MAX_UNITS:
        raise ConfigError(f"burst: a number up to {MAX_UNITS:,}")


# ── figures and times ────────────────────────────────────────────────────────


def check_time(at: datetime | None) -> None:
    """The clocks of stores know nothing of places: a time without its distance from UTC could be any."""
    if at is not None and at.tzinfo is None:
        raise ConfigError(f"{at.isoformat()} is no time of any place: give it with its distance from UTC")


def _check_due(due: Due) -> None:
    if isinstance(due, datetime):
        check_time(due)
    elif due is not None and abs(due) > LONGEST:
        raise ConfigError(f"nothing is put off for more than {LONGEST.days:,} days")


def _check_span(span: timedelta | None) -> None:
    if span is not None and not timedelta(0) <= span <= LONGEST:
        raise ConfigError(f"a time to live is from 0 to {LONGEST.days:,} days")


def _check_figures(*figures: int, least: int = 0) -> None:
    for each in figures:
        if not least <= each <= LARGEST:
            raise ConfigError(f"{each}: a whole number from {least} to {LARGEST:,}")
