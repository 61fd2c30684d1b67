"""History: what counts as which end, which rollups are folded, and that folding loses nothing."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.model.histogram import Histogram
from headrace.model.job import Failure, JobState
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.rollup import HOUR, MINUTE, AttemptEnd, Rollup
from headrace.policy.history import FOLD_AFTER, KEEP_MINUTES, Merged, end_of, last_dropped, plan_fold, ranges_to_fold

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


def test_after_a_day_minutes_become_an_hour() -> None:
    hour = (MINUTE_NOW - KEEP_MINUTES) // HOUR * HOUR - HOUR
    page = [rollup(hour + minute) for minute in (0, 17, 59)] + [rollup(hour + HOUR + 1)]
    fold = plan_fold(page, NOW)
    assert fold is not None
    assert fold.gone == [one.key for one in page[:3]]
    [whole] = fold.rollups
    assert (whole.start, whole.span, whole.count) == (hour, HOUR, 3)
    assert plan_fold([whole, page[3]], NOW) is None
    late = rollup(hour + 3)
    again = plan_fold([whole, late], NOW)
    assert again is not None
    assert [one.count for one in again.rollups] == [4]


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
        rollup(MINUTE_NOW - KEEP_MINUTES - 100 + minute, task=task, end=end, seconds=random.uniform(0.001, 100))
        for minute, task, end in ends
    ]
    before = totals(rollups)
    for _ in range(5):
        rollups.sort(key=lambda one: one.key)
        first = data.draw(st.integers(0, len(rollups)))
        fold = plan_fold(rollups[first:], NOW)
        if fold is not None:
            gone = set(fold.gone)
            rollups = [one for one in rollups if one.key not in gone] + fold.rollups
    assert totals(rollups) == before
    assert plan_fold(rollups, NOW) is None or len(rollups) > 1


def totals(rollups: list[Rollup]) -> dict[tuple[str, AttemptEnd], tuple[int, bytes]]:
    merged: dict[tuple[str, AttemptEnd], Merged] = {}
    for one in rollups:
        merged.setdefault((one.task, one.end), Merged()).add(one)
    return {key: (entry.count, entry.run.pack()) for key, entry in merged.items()}


def test_passes_look_where_rollups_arrive_and_where_they_become_hours() -> None:
    assert list(ranges_to_fold(NOW, everything=True)) == [(0, MINUTE_NOW + 1)]
    old, recent = ranges_to_fold(NOW, everything=False)
    assert old[1] == MINUTE_NOW - KEEP_MINUTES
    assert recent[1] == MINUTE_NOW + 1


def test_an_hour_is_kept_until_its_last_minute_is_past_retention() -> None:
    assert last_dropped(NOW, timedelta(days=30)) == MINUTE_NOW - 30 * 24 * 60 - HOUR
