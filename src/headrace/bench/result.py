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


WORKFLOWS = (
    "ordinary_together",
    "ordinary_drain_1",
    "ordinary_pickup",
    "fanout_1m",
    "fanout_drain",
    "group_1m",
    "group_singles",
    "chains",
    "chain_1",
    "join",
    "step_1",
    "steps_100",
    "suspended_idle",
    "suspended_signal",
    "bytes_blocked",
    "bytes_link",
)
"""What `--workflows` measures instead. `bytes_…` needs a floor, because only the engine knows them."""


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
    """jobs_per_s over floor_per_s. Where `targets.py` gives it an upper bound, it is a time, bytes or CPU time over that beside it."""
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
    target: str | None = None
    """`--workflows`: what the design asks for."""
    met: bool | None = None
    """Whether this run met it."""
    more_p50_ms: float | None = None
    """`join`: p50_ms less that of the workload beside it."""
    more_p99_ms: float | None = None
    """`join`: the same of p99_ms."""
    bytes_per_job: float | None = None
    """`bytes_…`: of the store, per job. floor_bytes is that of a job that waits for a worker."""
    floor_bytes: float | None = None
    lower_ratio: float | None = None
    """`--observed` and `--workflows`: the lower quartile of the ratios of all rounds. `ratio` is their median."""
    upper_ratio: float | None = None
    """`--observed`: the upper quartile."""
    cpu_us_per_job: float | None = None
    """`--observed` and `--workflows`: microseconds of CPU time per job, of the producer and the worker together."""
    cpu_ratio: float | None = None
    """`--observed` and `--workflows`: that of the workload beside it, over this. Other load of the machine changes it little."""
    answers_per_s: float | None = None
    """`browsers`: answers that all browsers got per second, without events."""
    events_per_s: float | None = None
    """`browsers`: events that all browsers got per second."""
    server_cpu: float | None = None
    """`browsers`: the server's share of one core."""
    server_cpu_at_rest: float | None = None
    """`browsers`: the same while no job runs."""


def median(values: Sequence[float]) -> float | None:
    """The median. None without values."""
    return statistics.median(values) if values else None


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile, between which half of the values lie."""
    if len(values) == 1:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper


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
