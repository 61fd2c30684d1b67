"""History: what counts as which end, how rollups are merged, and which of them are folded into fewer or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from headrace.model.histogram import Histogram
from headrace.model.outcome import Again, Settlement
from headrace.model.rollup import (
    DAY,
    HOUR,
    HOURS_FROM,
    MAX_ROLLUPS,
    MINUTE,
    MINUTES_FROM,
    QUARTER,
    QUARTERS_FROM,
    USAGE_FROM,
    AttemptEnd,
    Rollup,
    RollupKey,
    minute_of,
    usage_rollup,
)
from headrace.model.usage import Usage

REPEAT_FOR: Final = 60.0
"""Seconds for which a writer sends a rollup again, when it does not know whether the store has it."""
FOLD_AFTER: Final = 2 * REPEAT_FOR
"""Seconds after which a rollup may be folded. A folded one is gone, so that a repeated one would count again."""
KEEP_MINUTES: Final = 25 * HOUR
"""Minutes for which history is exact to the minute. One hour more than a day, so that a chart of 24 hours is."""
KEEP_HOURS: Final = 8 * DAY
"""Minutes for which history is exact to the hour. After that, it is exact to the day."""
RECENT: Final = 15
"""Minutes in which rollups usually arrive. Quarters, hours and days that ended before them are folded."""
_DETAILS: Final = {
    MINUTE: (MINUTES_FROM, KEEP_MINUTES),
    QUARTER: (QUARTERS_FROM, KEEP_MINUTES),
    HOUR: (HOURS_FROM, KEEP_HOURS),
}
"""span → the section that keeps rollups of this length after they were folded, and for how many minutes."""
_COARSER: Final = {MINUTE: QUARTER, QUARTER: HOUR, HOUR: DAY, DAY: DAY}
_FINER: Final = {DAY: HOUR, HOUR: QUARTER, QUARTER: MINUTE}


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
    minute = int(now // 60)
    groups: dict[tuple[int, int, str, str, AttemptEnd], list[Rollup]] = {}
    for rollup in page:
        if rollup.sent <= now - FOLD_AFTER:
            start, span = _target(rollup, minute)
            groups.setdefault((start, span, rollup.queue, rollup.task, rollup.end), []).append(rollup)
    fold = Fold([], [])
    for (start, span, queue, task, end), group in groups.items():
        # With its details, a fold may hold more rollups than it replaces. What does not fit is folded by the next call.
        rollups = group[: max(0, MAX_ROLLUPS - 1 - len(fold.rollups))]
        if not rollups or (len(rollups) == 1 and rollups[0].span == span):
            continue
        details = [kept for rollup in rollups if rollup.span < span and (kept := _detail(rollup, minute)) is not None]
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
        fold.rollups.extend(details)
    return fold if fold.gone else None


def plan_usage_fold(page: Sequence[Rollup], now: float) -> Fold | None:
    """As `plan_fold`, for rollups of the section USAGE_FROM. Their hours stay for KEEP_HOURS and then become days."""
    groups: dict[tuple[int, int, str], list[Rollup]] = {}
    for rollup in page:
        if rollup.sent <= now - FOLD_AFTER:
            target = _target(rollup, int(now // 60) - KEEP_HOURS)
            groups.setdefault((*target, rollup.queue), []).append(rollup)
    fold = Fold([], [])
    for (start, span, queue), rollups in groups.items():
        if len(rollups) == 1 and rollups[0].span == span:
            continue
        try:
            packed = merged_usage(rollups).pack()
        except ValueError:
            continue  # A newer version folds them.
        fold.gone.extend(rollup.key for rollup in rollups)
        sent = max(rollup.sent for rollup in rollups)
        fold.rollups.append(usage_rollup(packed, minute=minute_of(start), span=span, queue=queue, sent=sent))
    return fold if fold.gone else None


def merged_usage(rollups: Iterable[Rollup]) -> Usage:
    """What these rollups of usage hold together. Raises ValueError if a newer version has packed one in another way."""
    usage = Usage()
    for rollup in rollups:
        usage.merge(Usage.unpack(rollup.run))
    return usage


def _target(rollup: Rollup, minute: int) -> tuple[int, int]:
    """The start and the span of the rollup that this one belongs into. A minute reaches its day in three folds."""
    span = _COARSER.get(rollup.span, rollup.span)
    start = rollup.start - rollup.start % span
    return (start, span) if minute_of(start) + span <= minute - RECENT else (rollup.start, rollup.span)


def _detail(rollup: Rollup, minute: int) -> Rollup | None:
    """What stays of a rollup that is folded into a longer one. None: it is too old."""
    section, keep = _DETAILS[rollup.span]
    return None if rollup.start < minute - keep - HOUR else replace(rollup, start=section + rollup.start)


def ranges_to_drop(now: float, keep: timedelta) -> Iterator[tuple[int, int]]:
    """The starts that are past retention, by section. A day is kept until its last minute is past it."""
    minute = int(now // 60)
    past = max(0, int((now - keep.total_seconds()) // 60) - DAY)
    yield 0, past
    yield USAGE_FROM, USAGE_FROM + past
    for section, details in _DETAILS.values():
        yield section, section + max(0, minute - details - HOUR)


def ranges_to_fold(now: float, *, everything: bool) -> Iterator[tuple[int, int]]:
    """The minutes in which a pass looks: where rollups arrive and where they become hours and days, or all minutes."""
    minute = int(now // 60)
    ended = {span: _down(minute - RECENT, span) for span in (QUARTER, HOUR, DAY)}
    if everything:
        yield 0, minute + 1
        yield USAGE_FROM, USAGE_FROM + minute + 1
    else:
        yield minute - RECENT, minute + 1
        for span, end in ended.items():
            yield end - 2 * span, end
        yield USAGE_FROM + ended[HOUR] - HOUR, USAGE_FROM + minute + 1
        old = USAGE_FROM + ended[DAY] - KEEP_HOURS
        yield old - 2 * DAY, old


# ── reading ──────────────────────────────────────────────────────────────────


class Piece(NamedTuple):
    """A part of the time that a caller asks for."""

    first: int
    last: int
    """The minute after it."""
    span: int
    """Rollups of at most this length count. What longer ones hold is in the sections of details."""


def exact_to(minute: int, now: int) -> int:
    """The length to which history of this minute is exact: MINUTE, HOUR or DAY."""
    return MINUTE if minute >= now - KEEP_MINUTES else HOUR if minute >= now - KEEP_HOURS else DAY


def longest_in(step: int) -> int:
    """The longest span that such steps are made of."""
    return next(span for span in (DAY, HOUR, QUARTER, MINUTE) if not step % span)


def pieces(first: int, last: int, longest: int) -> list[Piece]:
    """The minutes from `first` until before `last` in as few rollups as possible, each of at most `longest` minutes."""
    whole = _down(first + longest - 1, longest), _down(last, longest)
    if longest == MINUTE:
        return [Piece(first, last, MINUTE)] if first < last else []
    if whole[0] >= whole[1]:
        return pieces(first, last, _FINER[longest])
    return [
        *pieces(first, whole[0], _FINER[longest]),
        Piece(*whole, longest),
        *pieces(whole[1], last, _FINER[longest]),
    ]


def ranges_to_read(parts: Sequence[Piece], now: int) -> Iterator[tuple[int, int]]:
    """The starts that hold these pieces: every rollup of the time, and details of hours and days that are folded."""
    yield parts[0].first, parts[-1].last
    for part in parts:
        # Nothing is folded before its hour or day has ended.
        if part.span in _DETAILS and part.first < _down(now, _COARSER[part.span]):
            section, _ = _DETAILS[part.span]
            yield section + part.first, section + part.last


def counts_in(rollup: Rollup, parts: Sequence[Piece]) -> bool:
    """Whether a rollup of `ranges_to_read` counts, or details stand for it."""
    minute = rollup.minute
    return any(part.first <= minute < part.last and rollup.span <= part.span for part in parts)


def aligned(minute: int, span: int) -> int:
    """The first beginning of an hour or a day at or after this minute."""
    return _down(minute + span - 1, span)


def _down(minute: int, span: int) -> int:
    return minute - minute % span


def earliest(rollups: Iterable[Rollup]) -> int:
    """The first start, without those of details."""
    return min(rollup.start for rollup in rollups)
