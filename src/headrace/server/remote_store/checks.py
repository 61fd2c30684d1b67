"""Checks the arguments of store calls. Names, figures and times that headrace would never send are refused or bounded.

Every error is a ConfigError, which becomes a 422: the mistake is the caller's, not the store's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from headrace.errors import ConfigError
from headrace.model.duration import LONGEST
from headrace.model.job import MAX_BATCH, Batch, Failure, JobId, split_id
from headrace.model.lane import MAX_UNITS, Lane, check_task_name, check_tenant
from headrace.model.lane import check_queue as _check_queue
from headrace.model.lease import Ask, Presence, Report
from headrace.model.outcome import DONE, Finish, Settlement
from headrace.model.records import Filter, LimitRule, PauseKind, Retention
from headrace.model.step import MAX_STEP_NAME, MAX_STEP_VALUE, MAX_STEPS, Step
from headrace.operate.limits import check_limit
from headrace.store.http import wire
from headrace.task.job_checks import check_due, check_span, check_time

MOST: Final = 10_000
"""The most entries of any list in one call."""
MOST_QUEUES: Final = 1000
MOST_IDS: Final = wire.MOST_IDS
MOST_LANES: Final = 1000
MOST_REASON: Final = 10_000
"""Characters."""
_MOST_MEMORY = 1 << 50
"""Bytes: more than any machine has, and less than a store can keep."""
LARGEST: Final = 2**31 - 1
"""The largest count that is stored."""

check_queue: Callable[[str], str] = lru_cache(maxsize=4096)(_check_queue)
"""Cached, because workers send the same few names."""


# ── enqueue ──────────────────────────────────────────────────────────────────


def check_batch(batch: Batch) -> None:
    """Check its id and its size. `admission` checks the jobs for both APIs."""
    if split_id(batch.id)[1] or len(batch.jobs) > MAX_BATCH:
        raise ConfigError(f"a batch has at most {MAX_BATCH:,} jobs, and an id whose last 16 bits are 0")


def check_lanes(lanes: Sequence[Lane]) -> None:
    """Bound the lanes, because a store writes to each lane in one step."""
    if len(lanes) > MOST_LANES:
        raise ConfigError(f"the jobs of one call are in at most {MOST_LANES:,} lanes: send them in several calls")


def check_ids(ids: Sequence[JobId]) -> None:
    if len(ids) > MOST_IDS:
        raise ConfigError(f"a call names at most {MOST_IDS:,} jobs: send more in several calls")


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
    if len(presence.tasks) > MOST:
        raise ConfigError(f"a worker names at most {MOST:,} tasks")
    for task in presence.tasks:
        check_task_name(task)
    # Besides words, a worker names the queues that are closed.
    if len(presence.hindered) > 10 + len(presence.queues) or any(len(word) > 80 for word in presence.hindered):
        raise ConfigError("hindered: at most 10 words and one for each queue, of 80 characters")
    if presence.upkeep is not None and len(presence.upkeep) > 40:
        raise ConfigError("upkeep: at most 40 characters")
    if presence.memory is not None and not 0 <= presence.memory < _MOST_MEMORY:
        raise ConfigError(f"memory: a whole number from 0 to {_MOST_MEMORY - 1:,}")
    _check_figures(presence.slots, presence.running)
    check_time(presence.started_at)


def check_settlement(settlement: Settlement) -> None:
    if settlement is DONE:
        return
    if isinstance(settlement, Finish):
        check_span(settlement.result_ttl)
        _check_figures(settlement.failures or 0, settlement.crashes or 0)
    else:
        check_due(settlement.due)
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


def check_steps(steps: Sequence[Step]) -> None:
    if len(steps) > wire.MOST_STEPS:
        raise ConfigError(f"a call has at most {wire.MOST_STEPS} steps: send more in several calls")
    for step in steps:
        check_time(step.at)
        if not (
            step.name and len(step.name) <= MAX_STEP_NAME and 0 <= step.number < MAX_STEPS and len(step.digest) <= 64
        ):
            raise ConfigError("a step has a name, number or digest that no worker sends")
        if len(step.value or b"") > MAX_STEP_VALUE:
            raise ConfigError(f"the result of a step has at most {MAX_STEP_VALUE:,} bytes")


def lease_time(ttl: timedelta) -> timedelta:
    if not timedelta(0) <= ttl <= LONGEST:
        raise ConfigError(f"a lease lasts from 0 to {LONGEST.days:,} days")
    return ttl


# ── readers and operators ────────────────────────────────────────────────────


def bounded(limit: int) -> int:
    """Bound a page, so that a call takes no longer than one of this server's own."""
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


def short(reason: str) -> str:
    """Check a reason, which becomes a log line."""
    if not reason.strip() or len(reason) > MOST_REASON:
        raise ConfigError(f"reason: up to {MOST_REASON:,} characters that say why")
    return reason.strip()


# ── figures ──────────────────────────────────────────────────────────────────


def _check_figures(*figures: int, least: int = 0) -> None:
    for figure in figures:
        if not least <= figure <= LARGEST:
            raise ConfigError(f"{figure}: a whole number from {least} to {LARGEST:,}")
