"""What became of attempts over time: counts and percentiles by queue, task or end, read from rollups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.model.duration import show
from headrace.model.histogram import Histogram
from headrace.model.rollup import HOUR, AttemptEnd, Rollup, RollupKey
from headrace.policy.history import KEEP_MINUTES, Merged
from headrace.store.contract import Store

HistoryBy = Literal["queue", "task", "end"]
"""What history is divided by."""
MOST_STEPS: Final = 1500
"""Steps of one answer, at most."""
MOST_POINTS: Final = 5000
"""Points of one answer, at most, unless the first step alone has more."""
_STEPS: Final = (1, 5, 15, HOUR, 6 * HOUR, 24 * HOUR)
"""Minutes that a step may take if the caller does not choose."""
_WANTED: Final = 120
"""Steps that a chart shows, at most, if the caller does not choose."""
_TRIES: Final = 3
"""How often the pages are read, until no fold comes between two of them."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that half, 95 % and 99 % of the attempts did not exceed, within 5 %. Null: there were none."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, histogram: Histogram) -> Percentiles:
        return cls(**{name: _rounded(histogram.percentile(share)) for name, share in _SHARES.items()})


_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


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
        sees: Callable[[str], bool] = lambda _: True,
    ) -> HistoryAnswer:
        """The history between two times. `sees`: whether the caller may know of a queue. `step="all"`: one step for all of it."""
        now = await self._store.now()
        first, last = _minute(since), _minute(now if until is None else min(until, now)) + 1
        old = first < _minute(now) - KEEP_MINUTES
        at_least = HOUR if old else 1
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
        groups = await self._groups(first, last, minutes, by, queue, task, sees)
        points = list(_points(groups))
        kept = _whole_steps(points)
        return HistoryAnswer(
            items=points[:kept], next=points[kept].at if kept < len(points) else None, step=60.0 * minutes
        )

    async def _groups(
        self,
        first: int,
        last: int,
        minutes: int,
        by: HistoryBy,
        queue: str | None,
        task: str | None,
        sees: Callable[[str], bool],
    ) -> Groups:
        """Read all pages. A fold between two pages may hide rollups or show them twice, so that the reading begins again."""
        groups: Groups = {}
        for _ in range(_TRIES):
            groups.clear()
            after: RollupKey | None = None
            folds: int | None = None
            while True:
                page = await self._store.read_history(first, last, queue=queue, task=task, after=after)
                if folds is not None and folds != page.folds:
                    break
                for rollup in page.rollups:
                    if sees(rollup.queue):
                        _add(groups, rollup, first, minutes, by)
                folds, after = page.folds, page.next
                if after is None:
                    return groups
        return groups


Groups = dict[tuple[int, str], dict[AttemptEnd, Merged]]
"""(first minute of the step, name) → what ended in which way."""


def _add(groups: Groups, rollup: Rollup, first: int, minutes: int, by: HistoryBy) -> None:
    name = rollup.queue if by == "queue" else rollup.task if by == "task" else rollup.end.value
    ends = groups.setdefault((rollup.start - (rollup.start - first) % minutes, name), {})
    if (merged := ends.get(rollup.end)) is None:
        merged = ends[rollup.end] = Merged()
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
    """Minutes of a step. History that is older than a day is exact to the hour."""
    if step is None:
        return next((minutes for minutes in _STEPS if minutes >= at_least and length <= minutes * _WANTED), _STEPS[-1])
    minutes = max(1, round(step.total_seconds() / 60), at_least)
    return minutes if minutes < HOUR else minutes - minutes % HOUR if at_least == HOUR else minutes


def _length(minutes: int) -> timedelta:
    return timedelta(minutes=minutes)


def _minute(at: datetime) -> int:
    return max(0, int(at.timestamp() // 60))


def _rounded(seconds: float | None) -> float | None:
    """Three figures, because the error is 5 %."""
    return None if seconds is None else float(f"{seconds:.3g}")
