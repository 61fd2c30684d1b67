"""Measurements: one object per workload, and the arithmetic of medians and percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

WORKLOADS = (
    "enqueue_single",
    "enqueue_bulk",
    "enqueue_stream",
    "drain_1",
    "drain_2",
    "together",
    "pickup",
    "backlog_1m",
)

FLOW = (
    "fifo",
    "tenants_uniform",
    "tenants_skewed",
    "one_limit",
    "limit_per_tenant",
    "fifo_apart",
    "uniform_apart",
    "skewed_apart",
)
"""What `--tenants` measures instead."""

EVERYDAY = (
    "enqueue_sync",
    "async_task",
    "sync_task",
    "fail_once",
    "payload_10k",
    "payload_100k",
    "trickle_500",
    "one_shot",
    "idle_chatter",
)
"""What `--everyday` measures instead. `one_shot` needs a store that several processes can use. `idle_chatter` needs a floor,
because only the engine can count the calls."""


OBSERVED = ("unobserved", "rollups", "browsers", "traced_1", "traced_100")
"""What `--observed` measures instead. `traced_…` needs a member that can trace."""


class Measurement(msgspec.Struct, kw_only=True):
    """One workload on one store. None: does not apply."""

    store: str
    workload: str
    jobs_per_s: float | None = None
    floor_per_s: float | None = None
    """What the engine does without a queue: one job row and one done row per job, or the half that applies.

    With `beside`: what that workload did in the same run. The installed package measures no floor.
    """
    ratio: float | None = None
    """jobs_per_s over floor_per_s."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    wal_bytes_per_job: float | None = None
    jobs: int = 0
    """Jobs per repeat."""
    repeats: int = 1
    waiting: int | None = None
    """`backlog_1m`: how many jobs waited."""
    claim_p99_ms_at_1k: float | None = None
    """`backlog_1m`: p99 of a claim with 1,000 waiting; beside p99_ms, which is with the backlog."""
    floor_p50_ms: float | None = None
    """`enqueue_single`: p50 of one durable insert without a queue."""
    beside: str | None = None
    """The workload that this one is compared with, instead of the floor."""
    bulk_per_s: float | None = None
    """`payload_…`: jobs enqueued per second, in calls of 1,000; jobs_per_s is how fast one worker drains them."""
    exit_p50_ms: float | None = None
    """`one_shot`: from the end of the enqueue call to the end of the script's process."""
    server_calls_per_s: float | None = None
    """`idle_chatter`: transactions or commands that one idle worker sends to the server."""
    lowest_ratio: float | None = None
    """`--observed`: the lowest ratio of a round. `ratio` is their median."""
    highest_ratio: float | None = None
    """`--observed`: the highest ratio of a round."""
    answers_per_s: float | None = None
    """`browsers`: answers that all browsers got per second, without events."""
    events_per_s: float | None = None
    """`browsers`: events that all browsers got per second."""
    server_cpu: float | None = None
    """`browsers`: the server's share of one core."""


def median(values: Sequence[float]) -> float | None:
    """The median. None without values."""
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all values does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rounded(value: float | None, digits: int = 3) -> float | None:
    """A number with few digits."""
    return None if value is None else round(value, digits)


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def ratio(above: float | None, below: float | None) -> float | None:
    """`above` over `below`, where both are known."""
    return rounded(above / below) if above is not None and below else None
