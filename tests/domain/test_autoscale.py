"""Autoscaling: what an estimate answers, and the properties that hold for all figures."""

from __future__ import annotations

from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.autoscale import Arrivals, Estimate, QueueLoad, RecentWork, estimate, whole_workers

RATES = st.floats(0, 1e6, allow_nan=False)
RECENT = st.none() | st.builds(RecentWork, RATES, RATES, st.none() | st.floats(0, 1e9, allow_nan=False))
LOADS = st.builds(
    QueueLoad,
    ready=st.integers(0, 10**12),
    running=st.integers(0, 10**9),
    slots=st.integers(0, 10_000),
    live_slots=st.none() | st.integers(0, 10**6),
    stopped=st.booleans(),
    recent=RECENT,
    enqueued=st.none() | RATES,
)
GOALS = st.floats(0, 1e9, allow_nan=False)


def workers(load: QueueLoad, within: float = 60.0) -> int:
    return whole_workers(estimate(load, within).processes)


SECOND = RecentWork(ended=10.0, returned=0.0, run=1.0)
"""Ten jobs per second, of a second each."""


def test_an_empty_queue_needs_nothing() -> None:
    assert estimate(QueueLoad(ready=0, running=0, slots=10)) == Estimate(0.0, 0.0)


def test_what_comes_in_is_served_beside_the_backlog() -> None:
    # 10 slots for what comes in, and 600 jobs of 1 s in 60 s take 10 more.
    load = QueueLoad(ready=600, running=10, slots=10, recent=SECOND)
    assert workers(load) == 2
    assert estimate(load).seconds_to_drain == 60.0
    assert workers(load, 10.0) == 7
    assert workers(load._replace(ready=0)) == 1


def test_a_known_rate_of_enqueues_counts_instead_of_what_ended() -> None:
    load = QueueLoad(ready=0, running=0, slots=10, recent=SECOND, enqueued=100.0)
    assert workers(load) == 10
    # Attempts that end without the end of their job come in again.
    assert workers(load._replace(recent=SECOND._replace(returned=20.0))) == 12


def test_without_history_every_job_takes_a_slot() -> None:
    load = QueueLoad(ready=95, running=10, slots=10)
    assert estimate(load) == Estimate(None, 10.5)
    assert workers(load) == 11


def test_a_job_that_takes_longer_than_the_goal_needs_one_slot() -> None:
    slow = RecentWork(ended=0.01, returned=0.0, run=600.0)
    assert workers(QueueLoad(ready=20, running=10, slots=10, recent=slow, enqueued=0.0)) == 3


def test_jobs_that_run_count_once_although_they_came_in() -> None:
    slow = RecentWork(ended=1.0, returned=0.0, run=300.0)
    assert workers(QueueLoad(ready=0, running=300, slots=100, recent=slow)) == 3
    assert workers(QueueLoad(ready=100, running=300, slots=100, recent=slow)) == 4


def test_a_stopped_queue_keeps_workers_for_what_runs() -> None:
    stopped = QueueLoad(ready=600, running=25, slots=10, stopped=True, recent=SECOND)
    assert (workers(stopped), estimate(stopped).seconds_to_drain) == (3, None)
    assert workers(stopped._replace(running=0)) == 0


def test_jobs_that_are_claimed_ahead_take_no_slot() -> None:
    short = RecentWork(ended=5000.0, returned=0.0, run=0.001)
    assert workers(QueueLoad(ready=0, running=2000, slots=100, live_slots=100, recent=short)) == 1


def test_short_jobs_are_bounded_by_the_pace_of_a_process() -> None:
    short = RecentWork(ended=10.0, returned=0.0, run=1e-6)
    assert workers(QueueLoad(ready=6_000_000, running=0, slots=100, recent=short)) == 11


def test_after_a_quiet_time_the_busy_slots_count() -> None:
    quiet = RecentWork(ended=0.01, returned=0.0, run=2.0)
    assert estimate(QueueLoad(ready=500, running=100, slots=100, recent=quiet)).seconds_to_drain == 10.0


def test_several_queues_share_processes() -> None:
    parts = [estimate(QueueLoad(ready=5, running=0, slots=10)).processes for _ in range(2)]
    assert whole_workers(sum(parts)) == 1
    assert [whole_workers(part) for part in parts] == [1, 1]
    # A sum of fractions may exceed the whole number by a rounding error.
    assert whole_workers(0.1 + 0.2 + 2.7) == 3


def test_workers_are_bounded() -> None:
    assert [whole_workers(7.2, most) for most in (None, 10, 8, 3, 0)] == [8, 8, 8, 3, 0]
    assert [whole_workers(amount) for amount in (0.0, 1e-300, 1.0, 1.01)] == [0, 1, 1, 2]


@given(LOADS, GOALS, st.integers(0, 10**12))
def test_more_backlog_never_wants_fewer_workers(load: QueueLoad, within: float, more: int) -> None:
    assert workers(load._replace(ready=load.ready + more), within) >= workers(load, within)


@given(LOADS, GOALS, st.floats(1, 1000))
def test_a_shorter_goal_never_wants_fewer_workers(load: QueueLoad, within: float, times: float) -> None:
    assert workers(load, within / times) >= workers(load, within)


@given(LOADS, GOALS, st.none() | st.integers(0, 100))
def test_every_answer_is_a_number_that_is_not_negative(load: QueueLoad, within: float, most: int | None) -> None:
    seconds, processes = estimate(load, within)
    assert processes >= 0
    assert isfinite(processes)
    assert seconds is None or seconds >= 0
    wanted = whole_workers(processes, most)
    assert wanted >= 0
    assert most is None or wanted <= most


@given(LOADS, GOALS)
def test_what_runs_keeps_its_workers(load: QueueLoad, within: float) -> None:
    busy = min(load.running, load.live_slots) if load.live_slots else load.running
    assert workers(load, within) * max(1, load.slots) >= busy


# ── arrivals ─────────────────────────────────────────────────────────────────


def test_arrivals_need_a_minute() -> None:
    arrivals = Arrivals()
    assert arrivals.measure(0.0, {"a": 100}) == {}
    assert arrivals.measure(59.0, {"a": 700}) == {}
    assert arrivals.measure(60.0, {"a": 700, "b": 60}) == {"a": 10.0, "b": 1.0}


def test_arrivals_are_those_of_the_last_minutes() -> None:
    arrivals = Arrivals()
    for second in range(0, 301, 15):
        arrivals.measure(float(second), {"a": 1000})
    # The reading at 0 s is too old by now, so that the one at 15 s counts.
    assert arrivals.measure(315.0, {"a": 1300}) == {"a": 1.0}
    # After a long silence there is nothing to compare with.
    assert arrivals.measure(9000.0, {"a": 9000}) == {}


def test_a_total_that_fell_is_no_measurement() -> None:
    arrivals = Arrivals()
    arrivals.measure(0.0, {"a": 100, "b": 0})
    assert arrivals.measure(100.0, {"a": 50, "b": 200}) == {"b": 2.0}


def test_arrivals_keep_few_readings() -> None:
    arrivals = Arrivals()
    for number in range(10_000):
        arrivals.measure(number / 10, {"a": number})
    assert len(arrivals._readings) <= 31
