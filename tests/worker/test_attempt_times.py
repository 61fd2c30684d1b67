"""The wait and run times of a worker for `/metrics`: few buckets, exact counts, a bounded number of labels."""

from __future__ import annotations

import random

import pytest

from headrace.model.histogram import _ENDS, Histogram  # pyright: ignore[reportPrivateUsage]
from headrace.model.rollup import OTHER_TASKS
from headrace.supervisor.series import ENDS_AT, MOST_PAIRS, OTHERS, RUN, SECONDS, WAIT
from headrace.worker.attempt_times import AttemptTimes, Durations


def of(*seconds: float) -> Histogram:
    histogram = Histogram()
    histogram.add(seconds)
    return histogram


def test_the_bounds_are_ends_of_buckets_of_the_histogram() -> None:
    assert [pytest.approx(_ENDS[index], rel=0.005) for index in ENDS_AT] == list(SECONDS)
    assert list(SECONDS) == sorted(SECONDS)
    assert OTHERS == OTHER_TASKS


def test_fewer_buckets_hold_the_same_durations() -> None:
    randomly = random.Random(7)
    seconds = [10 ** randomly.uniform(-5, 5) for _ in range(1000)]
    times = Durations.of(of(*seconds))
    assert times.size == 1000
    assert times.sum == pytest.approx(sum(seconds), rel=0.05)
    passed = 0
    for index, count in zip(ENDS_AT, times.counts, strict=False):
        passed += count
        assert passed == sum(duration <= _ENDS[index] for duration in seconds)


@pytest.mark.parametrize("ran", [1, 2, 3, 7, 100, 101, 999])
def test_a_sample_stands_for_all_attempts(ran: int) -> None:
    times = AttemptTimes()
    for _ in range(3):
        times.add("q", "t", of(0.2, 30.0), of(0.001, 2.0, 2.0, 70.0), ran)
    wait, run = times.series()
    assert (wait.family, run.family) == (WAIT, RUN)
    assert sum(run.counts) == 3 * ran
    assert sum(wait.counts) == 3 * round(ran / 2)
    assert min(run.counts) >= 0
    assert run.sum == pytest.approx(3 * ran * 74.0 / 4, rel=0.05)


def test_attempts_of_which_none_was_measured_are_like_those_before() -> None:
    times = AttemptTimes()
    times.add("q", "t", of(), of(), 5)
    wait, run = times.series()
    assert sum(run.counts) == sum(wait.counts) == run.counts[0] == 5
    times = AttemptTimes()
    times.add("q", "t", of(3.0), of(3.0), 1)
    times.add("q", "t", of(), of(), 9)
    wait, run = times.series()
    assert sum(run.counts) == sum(wait.counts) == max(run.counts) == 10


def test_an_attempt_that_never_ran_has_no_time() -> None:
    times = AttemptTimes()
    times.add("q", "t", of(), of())
    assert [sum(one.counts) for one in times.series()] == [0, 0]


def test_tasks_beyond_the_most_share_a_series_of_their_queue() -> None:
    times = AttemptTimes()
    for number in range(MOST_PAIRS + 50):
        times.add("q", f"t{number}", of(1.0), of(1.0), 1)
    runs = {one.labels: sum(one.counts) for one in times.series() if one.family == RUN}
    assert len(runs) == MOST_PAIRS + 1
    assert runs["q", OTHERS] == 50
