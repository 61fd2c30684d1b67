"""What became of attempts over time: counts and percentiles by queue, task or end, read from rollups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.model.duration import show
from headrace.model.histogram import Histogram
from headrace.model.rollup import DAY, HOUR, AttemptEnd, Rollup
from headrace.operate.rollups import read_rollups
from headrace.policy.history import Merged, aligned, counts_in, exact_to, longest_in, pieces, ranges_to_read
from headrace.store.contract import Store

HistoryBy = Literal["queue", "task", "end"]
"""What history is divided by."""
MOST_STEPS: Final = 1500
"""Steps of one answer, at most."""
MOST_POINTS: Final = 5000
"""Points of one answer, at most, unless the first step alone has more."""
_STEPS: Final = (1, 5, 15, HOUR, 6 * HOUR, DAY)
"""Minutes that a step may take if the caller does not choose."""
_WANTED: Final = 120
"""Steps that a chart shows, at most, if the caller does not choose."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that half, 95 % and 99 % of the attempts did not exceed, within 5 %. Null: there were none."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, histogram: Histogram) -> Percentiles:
        p50, p95, p99 = map(_rounded, histogram.percentiles((0.5, 0.95, 0.99)))
        return cls(p50=p50, p95=p95, p99=p99)


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one step that belong together."""

    at: datetime
    """The beginning of the step."""
    name: str
    """The queue, the task or the end, by which the history is divided. The task `*` stands for further tasks."""
    count: int
    """How many attempts ended."""
    ends: dict[str, int]
    """How many of them ended in which way: `done`, `failed`, `dead`, `cancelled`, `snoozed`."""
    wait: Percentiles
    """The time between the enqueue of a job and its first start."""
    run: Percentiles
    """The time between the start and the end of an attempt."""


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Points by time and name."""

    items: list[HistoryPoint]
    next: datetime | None
    """Pass as `since` for the next page; null: this was the last."""
    step: float
    """The length of a step in seconds."""


class HistoryOperations:
    """Reads the history of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(
        self,
        since: datetime,
        until: datetime | None = None,
        *,
        by: HistoryBy = "queue",
        step: timedelta | Literal["all"] | None = None,
        queue: str | None = None,
        task: str | None = None,
        times: bool = True,
        sees: Callable[[str], bool] = lambda _: True,
    ) -> HistoryAnswer:
        """The history between two times. `sees`: whether the caller may know of a queue. `step="all"`: one step for all of it.

        `times`: with percentiles. Most of the work is to merge their histograms.
        """
        now = _minute(await self._store.now())
        first, last = _minute(since), (now if until is None else min(_minute(until), now)) + 1
        at_least = exact_to(first, now)
        last = aligned(last, exact_to(last, now))
        if step == "all":
            first -= first % at_least
            minutes = max(1, last - first)
        else:
            minutes = _step(step, last - first - 1, at_least=at_least)
            first -= first % minutes
        if (last - first) / minutes > MOST_STEPS:
            raise ConfigError(
                f"a history has at most {MOST_STEPS} steps: give a longer step than {show(_length(minutes))}"
            )
        parts = pieces(first, last, DAY if step == "all" else longest_in(minutes))
        groups: Groups = {}

        def take(rollup: Rollup) -> None:
            if sees(rollup.queue) and counts_in(rollup, parts):
                _add(groups, rollup, first, minutes, by, times=times)

        if parts:
            ranges = list(ranges_to_read(parts, now))
            await read_rollups(self._store, ranges, take, restart=groups.clear, queue=queue, task=task)
        points = list(_points(groups))
        kept = _whole_steps(points)
        return HistoryAnswer(
            items=points[:kept], next=points[kept].at if kept < len(points) else None, step=60.0 * minutes
        )


Groups = dict[tuple[int, str], dict[AttemptEnd, Merged]]
"""(first minute of the step, name) → what ended in which way."""


def _add(groups: Groups, rollup: Rollup, first: int, minutes: int, by: HistoryBy, *, times: bool) -> None:
    name = rollup.queue if by == "queue" else rollup.task if by == "task" else rollup.end.value
    ends = groups.setdefault((rollup.minute - (rollup.minute - first) % minutes, name), {})
    if (merged := ends.get(rollup.end)) is None:
        merged = ends[rollup.end] = Merged()
    if not times:
        merged.count += rollup.count
        return
    try:
        merged.add(rollup)
    except ValueError:
        merged.count += rollup.count  # Only a newer version can read its times.


def _points(groups: Groups) -> Iterator[HistoryPoint]:
    for (start, name), ends in sorted(groups.items()):
        wait, run = Histogram(), Histogram()
        for merged in ends.values():
            wait.merge(merged.wait)
            run.merge(merged.run)
        yield HistoryPoint(
            at=datetime.fromtimestamp(start * 60, UTC),
            name=name,
            count=sum(merged.count for merged in ends.values()),
            ends={end.value: ends[end].count for end in AttemptEnd if end in ends},
            wait=Percentiles.of(wait),
            run=Percentiles.of(run),
        )


def _whole_steps(points: list[HistoryPoint]) -> int:
    """How many points are whole steps and not too many. The first step is never cut."""
    if len(points) <= MOST_POINTS:
        return len(points)
    cut = points[MOST_POINTS].at
    whole = next(place for place, point in enumerate(points) if point.at == cut)
    return whole or next((place for place, point in enumerate(points) if point.at != cut), len(points))


def _step(step: timedelta | None, length: int, *, at_least: int) -> int:
    """Minutes of a step, whole hours or days where history is exact to these."""
    if step is None:
        return next((minutes for minutes in _STEPS if minutes >= at_least and length <= minutes * _WANTED), _STEPS[-1])
    minutes = max(round(step.total_seconds() / 60), at_least)
    return minutes - minutes % at_least


def _length(minutes: int) -> timedelta:
    return timedelta(minutes=minutes)


def _minute(at: datetime) -> int:
    return max(0, int(at.timestamp() // 60))


def _rounded(seconds: float | None) -> float | None:
    """Three figures, because the error is 5 %."""
    return None if seconds is None else float(f"{seconds:.3g}")
