"""History: what counts as which end, how rollups are merged, and which of them are folded into fewer or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import uuid4

from headrace.model.histogram import Histogram
from headrace.model.outcome import Again, Settlement
from headrace.model.rollup import HOUR, AttemptEnd, Rollup, RollupKey

REPEAT_FOR: Final = 60.0
"""Seconds for which a writer sends a rollup again, when it does not know whether the store has it."""
FOLD_AFTER: Final = 2 * REPEAT_FOR
"""Seconds after which a rollup may be folded. A folded one is gone, so that a repeated one would count again."""
KEEP_MINUTES: Final = 24 * 60
"""Minutes for which history is exact to the minute. After that, it is exact to the hour."""
RECENT: Final = 15
"""Minutes in which rollups usually arrive."""
FOLDED_HOURS: Final = 2 * HOUR
"""Minutes before the last KEEP_MINUTES in which a pass looks for rollups to fold into hours."""


def end_of(settlement: Settlement) -> AttemptEnd | None:
    """The end that a settlement counts as. None: the job was handed back, so the attempt does not count."""
    if not isinstance(settlement, Again):
        return AttemptEnd(settlement.state.value)
    if settlement.failure is not None:
        return AttemptEnd.FAILED
    return None if settlement.due is None else AttemptEnd.SNOOZED


class Merged:
    """What several rollups hold together."""

    __slots__ = ("count", "run", "wait")

    def __init__(self) -> None:
        self.count = 0
        self.wait = Histogram()
        self.run = Histogram()

    def add(self, rollup: Rollup) -> None:
        """Raises ValueError if a newer version has packed its histograms in another way."""
        self.wait.merge_packed(rollup.wait)
        self.run.merge_packed(rollup.run)
        self.count += rollup.count


class Fold(NamedTuple):
    """Rollups to replace, and what replaces them."""

    gone: list[RollupKey]
    rollups: list[Rollup]


def plan_fold(page: Sequence[Rollup], now: float) -> Fold | None:
    """What to fold of these rollups. None: nothing. `now`: seconds since 1970 by the store's clock."""
    groups: dict[tuple[int, int, str, str, AttemptEnd], list[Rollup]] = {}
    for rollup in page:
        if rollup.sent <= now - FOLD_AFTER:
            start, span = _target(rollup, int(now // 60))
            groups.setdefault((start, span, rollup.queue, rollup.task, rollup.end), []).append(rollup)
    fold = Fold([], [])
    for (start, span, queue, task, end), rollups in groups.items():
        if len(rollups) == 1 and rollups[0].span == span:
            continue
        merged = Merged()
        try:
            for rollup in rollups:
                merged.add(rollup)
        except ValueError:
            continue  # A newer version folds them.
        fold.gone.extend(rollup.key for rollup in rollups)
        fold.rollups.append(
            Rollup(
                start=start,
                id=uuid4(),
                span=span,
                queue=queue,
                task=task,
                end=end,
                count=merged.count,
                wait=merged.wait.pack(),
                run=merged.run.pack(),
                sent=max(rollup.sent for rollup in rollups),
            )
        )
    return fold if fold.gone else None


def _target(rollup: Rollup, minute: int) -> tuple[int, int]:
    """The start and the span of the rollup that this one belongs into."""
    hour = rollup.start - rollup.start % HOUR
    return (hour, HOUR) if hour + HOUR <= minute - KEEP_MINUTES else (rollup.start, rollup.span)


def last_dropped(now: float, keep: timedelta) -> int:
    """Rollups that start before this minute are past retention."""
    return int((now - keep.total_seconds()) // 60) - HOUR


def ranges_to_fold(now: float, *, everything: bool) -> Iterator[tuple[int, int]]:
    """The minutes in which a pass looks: where rollups arrive and where they become hours, or all minutes."""
    minute = int(now // 60)
    if everything:
        yield 0, minute + 1
        return
    hours = minute - KEEP_MINUTES
    yield hours - FOLDED_HOURS, hours
    yield minute - RECENT, minute + 1


def earliest(rollups: Iterable[Rollup]) -> int:
    return min(rollup.start for rollup in rollups)
