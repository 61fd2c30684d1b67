"""History: what counts as which end, which rollups are folded, and that folding loses nothing."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.model.histogram import Histogram
from headrace.model.job import Failure, JobState
from headrace.model.outcome import DONE, Again, Finish
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
)
from headrace.policy.history import (
    FOLD_AFTER,
    KEEP_HOURS,
    KEEP_MINUTES,
    RECENT,
    Merged,
    Piece,
    counts_in,
    end_of,
    exact_to,
    pieces,
    plan_fold,
    ranges_to_drop,
    ranges_to_fold,
    ranges_to_read,
)

NOW = 29_454_480 * 60.0
MINUTE_NOW = 29_454_480
FAILURE = Failure(1, "ValueError", "no", "", datetime(2026, 1, 1, tzinfo=UTC))


def rollup(start: int, *, task: str = "t", end: AttemptEnd = AttemptEnd.DONE, seconds: float = 1.0) -> Rollup:
    times = Histogram()
    times.add([seconds])
    packed = times.pack()
    return Rollup(
        start=start,
        id=uuid4(),
        queue="q",
        task=task,
        end=end,
        count=1,
        wait=packed,
        run=packed,
        sent=min(start * 60, int(NOW - FOLD_AFTER)),
    )


def test_ends_by_settlement() -> None:
    assert end_of(DONE) is AttemptEnd.DONE
    assert end_of(Finish(JobState.DEAD)) is AttemptEnd.DEAD
    assert end_of(Finish(JobState.CANCELLED)) is AttemptEnd.CANCELLED
    assert end_of(Again(1, 0, due=timedelta(seconds=5), failure=FAILURE)) is AttemptEnd.FAILED
    assert end_of(Again(0, 1, suspect=True, failure=FAILURE)) is AttemptEnd.FAILED
    assert end_of(Again(0, 0, due=timedelta(0))) is AttemptEnd.SNOOZED
    assert end_of(Again(0, 0)) is None
    assert end_of(Again(0, 0, suspect=True)) is None


def test_rollups_of_one_minute_and_key_become_one() -> None:
    page = [rollup(MINUTE_NOW - 5), rollup(MINUTE_NOW - 5), rollup(MINUTE_NOW - 5, task="u"), rollup(MINUTE_NOW - 4)]
    fold = plan_fold(page, NOW)
    assert fold is not None
    assert fold.gone == [page[0].key, page[1].key]
    [whole] = fold.rollups
    assert (whole.start, whole.span, whole.task, whole.count) == (MINUTE_NOW - 5, MINUTE, "t", 2)
    assert Histogram.unpack(whole.run).count == 2


def test_a_young_rollup_is_not_folded_because_its_writer_may_send_it_again() -> None:
    young = replace(rollup(MINUTE_NOW - 60), sent=int(NOW - FOLD_AFTER) + 1)
    assert plan_fold([young, replace(young, id=uuid4())], NOW) is None


@pytest.mark.parametrize(
    ("span", "longer", "section"),
    [(MINUTE, QUARTER, MINUTES_FROM), (QUARTER, HOUR, QUARTERS_FROM), (HOUR, DAY, HOURS_FROM)],
)
def test_short_rollups_become_a_longer_one_and_stay_as_details(span: int, longer: int, section: int) -> None:
    start = (MINUTE_NOW - RECENT) // longer * longer - longer
    page = [replace(rollup(start + place), span=span) for place in (0, span, longer - span)]
    later = replace(rollup((MINUTE_NOW - RECENT) // longer * longer), span=span)
    fold = plan_fold([*page, later], NOW)
    assert fold is not None
    assert fold.gone == [one.key for one in page]
    whole, *details = fold.rollups
    assert (whole.start, whole.span, whole.count) == (start, longer, 3)
    assert details == [replace(one, start=section + one.start) for one in page]
    assert [one.minute for one in details] == [one.start for one in page]
    assert plan_fold([later], NOW) is None
    late = replace(rollup(start), span=span)
    again = plan_fold([whole, late], NOW)
    assert again is not None
    assert [(one.start, one.count) for one in again.rollups] == [(start, 4), (section + late.start, 1)]


def test_old_details_are_not_kept() -> None:
    day = (MINUTE_NOW - KEEP_HOURS) // DAY * DAY - DAY
    fold = plan_fold([replace(rollup(day), span=HOUR), rollup(day + HOUR)], NOW)
    assert fold is not None
    assert sorted((one.start, one.span) for one in fold.rollups) == [(day, DAY), (day + HOUR, QUARTER)]


@pytest.mark.parametrize(("tasks", "left", "calls"), [(MAX_ROLLUPS, MAX_ROLLUPS, 2), (1, 1, 2), (300, 300, 2)])
def test_a_fold_never_holds_more_than_a_call_may(tasks: int, left: int, calls: int) -> None:
    quarter = (MINUTE_NOW - RECENT) // QUARTER * QUARTER - QUARTER
    page = [rollup(quarter + number % QUARTER, task=f"t{number % tasks}") for number in range(MAX_ROLLUPS)]
    folds = 0
    while (fold := plan_fold(page[:MAX_ROLLUPS], NOW)) is not None:
        assert len(fold.gone) <= MAX_ROLLUPS
        assert len(fold.rollups) <= MAX_ROLLUPS
        gone = set(fold.gone)
        page = [one for one in page if one.key not in gone] + [one for one in fold.rollups if one.span == QUARTER]
        folds += 1
    assert {one.span for one in page} == {QUARTER}
    assert (len(page), folds) == (left, calls)


def test_a_histogram_of_a_newer_version_stays_as_it_is() -> None:
    strange = replace(rollup(MINUTE_NOW - 5), run=b"\x63")
    assert plan_fold([strange, rollup(MINUTE_NOW - 5)], NOW) is None


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from("ab"), st.sampled_from(AttemptEnd)), max_size=60), st.data()
)
def test_folding_loses_nothing_in_whatever_pages_it_happens(
    ends: list[tuple[int, str, AttemptEnd]], data: st.DataObject
) -> None:
    rollups = [
        rollup(MINUTE_NOW - DAY - 100 + minute, task=task, end=end, seconds=random.uniform(0.001, 100))
        for minute, task, end in ends
    ]
    before = totals(rollups)
    for _ in range(5):
        rollups.sort(key=lambda one: one.key)
        main = [one for one in rollups if one.start < MINUTES_FROM]
        first = data.draw(st.integers(0, len(main)))
        fold = plan_fold(main[first:], NOW)
        if fold is not None:
            gone = set(fold.gone)
            rollups = [one for one in rollups if one.key not in gone] + fold.rollups
        # Whatever is folded so far, and however fine the reader asks: every attempt counts once.
        for longest in (MINUTE, QUARTER, HOUR, DAY):
            start = MINUTE_NOW - 2 * DAY if longest == DAY else MINUTE_NOW - DAY - 120
            parts = pieces(start, MINUTE_NOW + 1, longest)
            assert totals(read(rollups, parts)) == before


def read(rollups: list[Rollup], parts: list[Piece]) -> list[Rollup]:
    ranges = list(ranges_to_read(parts, MINUTE_NOW))
    return [one for first, last in ranges for one in rollups if first <= one.start < last and counts_in(one, parts)]


@given(st.integers(0, 4 * DAY), st.integers(0, 4 * DAY), st.sampled_from([MINUTE, QUARTER, HOUR, DAY]))
def test_pieces_cover_the_time_without_gaps(first: int, length: int, longest: int) -> None:
    last = first + length
    parts = pieces(first, last, longest)
    minute = first
    for part in parts:
        assert part.first == minute
        assert part.first < part.last
        assert not part.first % part.span
        assert not part.last % part.span
        assert part.span <= longest
        minute = part.last
    assert minute == last
    assert len(parts) <= 7


def test_history_is_exact_to_the_minute_then_to_the_hour_then_to_the_day() -> None:
    assert exact_to(MINUTE_NOW - DAY - 1, MINUTE_NOW) == MINUTE
    assert exact_to(MINUTE_NOW - KEEP_MINUTES - 1, MINUTE_NOW) == HOUR
    assert exact_to(MINUTE_NOW - 7 * DAY - 1, MINUTE_NOW) == HOUR
    assert exact_to(MINUTE_NOW - KEEP_HOURS - 1, MINUTE_NOW) == DAY


def totals(rollups: list[Rollup]) -> dict[tuple[str, AttemptEnd], tuple[int, bytes]]:
    merged: dict[tuple[str, AttemptEnd], Merged] = {}
    for one in rollups:
        merged.setdefault((one.task, one.end), Merged()).add(one)
    return {key: (entry.count, entry.run.pack()) for key, entry in merged.items()}


def test_passes_look_where_rollups_arrive_and_where_they_become_hours_and_days() -> None:
    usage = USAGE_FROM + MINUTE_NOW + 1
    assert list(ranges_to_fold(NOW, everything=True)) == [(0, MINUTE_NOW + 1), (USAGE_FROM, usage)]
    recent, quarters, hours, days, usages, old = ranges_to_fold(NOW, everything=False)
    assert recent == (MINUTE_NOW - RECENT, MINUTE_NOW + 1)
    assert quarters == (MINUTE_NOW - RECENT - 2 * QUARTER, MINUTE_NOW - RECENT)
    assert hours == (MINUTE_NOW - 3 * HOUR, MINUTE_NOW - HOUR)
    assert days == (MINUTE_NOW // DAY * DAY - 2 * DAY, MINUTE_NOW // DAY * DAY)
    assert usages == (USAGE_FROM + MINUTE_NOW - 2 * HOUR, usage)
    assert old == (USAGE_FROM + days[0] - KEEP_HOURS, USAGE_FROM + days[1] - KEEP_HOURS)


def test_a_day_is_kept_until_its_last_minute_is_past_retention() -> None:
    main, usage, minutes, quarters, hours = ranges_to_drop(NOW, timedelta(days=30))
    assert main == (0, MINUTE_NOW - 31 * DAY)
    assert usage == (USAGE_FROM, USAGE_FROM + MINUTE_NOW - 31 * DAY)
    assert minutes == (MINUTES_FROM, MINUTES_FROM + MINUTE_NOW - KEEP_MINUTES - HOUR)
    assert quarters[1] - QUARTERS_FROM == minutes[1] - MINUTES_FROM
    assert hours == (HOURS_FROM, HOURS_FROM + MINUTE_NOW - KEEP_HOURS - HOUR)
