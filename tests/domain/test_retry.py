"""The retry rule, case by case: every outcome, at every edge of attempts and crashes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.model.job import Claimed, Failure, JobState
from headrace.model.outcome import (
    DONE,
    Again,
    Cancelled,
    Dead,
    Failed,
    Finish,
    Lost,
    Released,
    RetryAfter,
    Snooze,
    Snoozed,
    Succeeded,
)
from headrace.policy.retry import decide
from headrace.task.retry import Retry

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FAILURE = Failure(attempt=1, kind="ValueError", message="no", traceback="…", at=NOW)


def claimed(*, attempt: int = 1, failures: int = 0, crashes: int = 0) -> Claimed:
    return Claimed(UUID(int=0), 0, attempt, failures, crashes, "t", b"", None, "default", 0, "", NOW)


def half() -> float:
    return 0.5


# ── endings ──────────────────────────────────────────────────────────────────


def test_success_without_a_result_is_the_shared_ending():
    assert decide(claimed(), Succeeded(), Retry()) is DONE


def test_success_keeps_its_result_for_its_time():
    ttl = timedelta(hours=1)
    assert decide(claimed(), Succeeded(b"x"), Retry(), result_ttl=ttl) == Finish(JobState.DONE, b"x", ttl)


def test_success_with_no_time_to_live_keeps_only_that_there_was_a_result():
    none = timedelta(0)
    assert decide(claimed(), Succeeded(b"secret"), Retry(), result_ttl=none) == Finish(JobState.DONE, b"", none)
    assert decide(claimed(), Succeeded(None), Retry(), result_ttl=none) is DONE


@pytest.mark.parametrize(("reason", "note"), [("", None), ("no longer needed", "no longer needed")])
def test_cancelled(reason, note):
    assert decide(claimed(failures=2), Cancelled(reason), Retry()) == Finish(JobState.CANCELLED, note=note)


# ── failures ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("failures", range(5))
def test_a_failure_is_tried_again_until_the_attempts_are_used_up(most, failures):
    settlement = decide(claimed(failures=failures, crashes=1), Failed(FAILURE), Retry(max_attempts=most), rand=half)
    if failures + 1 < most:
        delay = timedelta(seconds=2 * 2**failures)
        assert settlement == Again(failures + 1, 1, due=delay, failure=FAILURE)
    else:
        assert settlement == Finish(JobState.DEAD, note="max_attempts", failure=FAILURE, failures=failures + 1)


def test_attempts_that_were_no_failures_do_not_count():
    settlement = decide(claimed(attempt=900, failures=3), Failed(FAILURE), Retry(max_attempts=5), rand=half)
    assert isinstance(settlement, Again)
    assert settlement.failures == 4


@pytest.mark.parametrize(("reason", "note"), [("", "final"), ("CardDeclined", "CardDeclined")])
def test_a_final_failure_is_dead_at_once(reason, note):
    settlement = decide(claimed(), Failed(FAILURE, final=True, reason=reason), Retry())
    assert settlement == Finish(JobState.DEAD, note=note, failure=FAILURE, failures=1)


@pytest.mark.parametrize("after", [timedelta(0), timedelta(seconds=10), timedelta(days=2)])
def test_retry_after_beats_backoff_and_cap(after):
    settlement = decide(claimed(), Failed(FAILURE, retry_after=after), Retry(cap="1s"))
    assert settlement == Again(1, 0, due=after, failure=FAILURE)


def test_retry_after_still_counts_as_a_failure():
    settlement = decide(claimed(failures=4), Failed(FAILURE, retry_after=timedelta(seconds=1)), Retry())
    assert settlement == Finish(JobState.DEAD, note="max_attempts", failure=FAILURE, failures=5)


# ── neither ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("due", [timedelta(seconds=30), NOW])
def test_a_snooze_charges_nothing(due):
    settlement = decide(claimed(attempt=9, failures=4, crashes=2), Snoozed(due, "waiting"), Retry())
    assert settlement == Again(4, 2, due=due, note="waiting")


def test_a_release_charges_nothing_and_goes_back_at_once():
    assert decide(claimed(failures=4, crashes=2), Released(), Retry()) == Again(4, 2)


# ── the deadline ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("left", "dead"), [(5.0, False), (2.001, False), (2.0, True), (0.0, True), (-60.0, True)])
def test_a_retry_that_would_begin_after_the_deadline_is_dead_now(left, dead):
    settlement = decide(claimed(), Failed(FAILURE), Retry(), left=timedelta(seconds=left), rand=half)
    if dead:
        assert settlement == Finish(JobState.DEAD, note="deadline", failure=FAILURE, failures=1)
    else:
        assert settlement == Again(1, 0, due=timedelta(seconds=2), failure=FAILURE)


def test_what_is_dead_for_another_reason_says_that_one():
    over = timedelta(seconds=-1)
    assert decide(claimed(failures=4), Failed(FAILURE), Retry(), left=over) == Finish(
        JobState.DEAD, note="max_attempts", failure=FAILURE, failures=5
    )
    assert decide(claimed(), Failed(FAILURE, final=True, reason="gone"), Retry(), left=over) == Finish(
        JobState.DEAD, note="gone", failure=FAILURE, failures=1
    )


def test_the_delay_that_a_task_asks_for_is_measured_by_the_deadline_too():
    outcome = Failed(FAILURE, retry_after=timedelta(minutes=5))
    assert isinstance(decide(claimed(), outcome, Retry(), left=timedelta(minutes=6)), Again)
    assert isinstance(decide(claimed(), outcome, Retry(), left=timedelta(minutes=4)), Finish)


def test_a_snooze_beyond_the_deadline_is_dead_now():
    snoozed = Snoozed(timedelta(minutes=5), "waiting")
    assert decide(claimed(failures=1), snoozed, Retry(), left=timedelta(minutes=5)) == Finish(
        JobState.DEAD, note="deadline"
    )
    assert decide(claimed(failures=1), snoozed, Retry(), left=timedelta(minutes=6)) == Again(
        1, 0, due=timedelta(minutes=5), note="waiting"
    )


@pytest.mark.parametrize(
    ("outcome", "settlement"),
    [
        (Succeeded(), DONE),
        (Released(), Again(0, 0)),
        (Cancelled("enough"), Finish(JobState.CANCELLED, note="enough")),
        (Lost("killed", own=False, at=NOW), Again(0, 0, suspect=True)),
    ],
)
def test_a_deadline_that_passed_changes_no_other_outcome(outcome, settlement):
    assert decide(claimed(), outcome, Retry(), left=timedelta(seconds=-1)) == settlement


# ── lost ─────────────────────────────────────────────────────────────────────


def test_one_of_many_comes_back_as_a_suspect_uncharged():
    assert decide(claimed(failures=4, crashes=2), Lost("killed", own=False, at=NOW), Retry()) == Again(
        4, 2, suspect=True
    )


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("crashes", range(3))
def test_crashes_of_its_own_kill_a_job_apart_from_failures(most, crashes):
    lost = Lost("killed by SIGSEGV", own=True, at=NOW)
    settlement = decide(claimed(attempt=7, failures=4, crashes=crashes), lost, Retry(max_crashes=most))
    failure = Failure(attempt=7, kind="worker_lost", message="killed by SIGSEGV", traceback="", at=NOW)
    if crashes + 1 < most:
        assert settlement == Again(4, crashes + 1, suspect=True, failure=failure)
    else:
        assert settlement == Finish(JobState.DEAD, note="worker_lost", failure=failure, crashes=crashes + 1)


# ── the delay ────────────────────────────────────────────────────────────────

seconds = st.floats(0, 3600 * 24).map(lambda value: timedelta(seconds=value))


def growth(factor: float, steps: int) -> float:
    value = 1.0
    while steps and factor > 1 and value < 1e9:
        value *= factor
        steps -= 1
    return min(value, 1e9)


@given(
    failures=st.integers(1, 10_000),
    rand=st.floats(0, 1),
    base=seconds,
    cap=seconds,
    factor=st.floats(1, 100),
    jitter=st.tuples(st.floats(0, 10), st.floats(0, 10)).map(lambda pair: (min(pair), max(pair))),
)
def test_the_delay_stays_within_its_bounds(failures, rand, base, cap, factor, jitter):
    policy = Retry(base=base, cap=cap, factor=factor, jitter=jitter)
    delay = policy.delay(failures, lambda: rand)
    assert timedelta(0) <= delay <= cap
    plain = timedelta(seconds=min(base.total_seconds() * growth(factor, failures - 1), cap.total_seconds()))
    slack = timedelta(milliseconds=1) + plain * 1e-3
    low, high = jitter
    lowest = plain * low if plain * low < cap or low == high else cap * (low / high)
    assert min(lowest, cap) - slack <= delay <= plain * high + slack


@pytest.mark.parametrize("jitter", [(0.5, 1.5), (0.0, 1.0), (0.9, 1.1), (1.0, 2.0), (2.0, 3.0)])
def test_delays_at_the_cap_are_spread_and_do_not_pile_up(jitter):
    policy = Retry(jitter=jitter)
    delays = [policy.delay(30, lambda draw=draw: draw / 1000) for draw in range(1000)]
    assert len(set(delays)) == 1000
    assert max(delays) <= timedelta(hours=1)


def test_without_jitter_the_delay_at_the_cap_is_the_cap():
    assert Retry(jitter=(1, 1)).delay(30, lambda: 0.3) == timedelta(hours=1)
    assert Retry(jitter=(2, 2)).delay(30, lambda: 0.3) == timedelta(hours=1)


@given(st.floats(0, 1))
def test_the_default_grows_from_two_seconds_to_an_hour(rand):
    policy = Retry()
    for failures in range(1, 30):
        middle = min(2.0**failures, 3600)
        delay = policy.delay(failures, lambda: rand).total_seconds()
        assert middle * 0.5 - 0.001 <= delay <= min(middle * 1.5, 3600) + 0.001


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1001},
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"max_crashes": 0},
        {"base": "soon"},
        {"cap": "-1s"},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"jitter": (1.5, 0.5)},
        {"jitter": (-1, 1)},
        {"never": ("ValueError",)},
        {"never": (ValueError("x"),)},
    ],
)
def test_wrong_policies_are_refused_where_they_are_written(wrong):
    with pytest.raises(ConfigError, match=r"^Retry\." + next(iter(wrong))):
        Retry(**wrong)


# ── the exceptions a task raises ─────────────────────────────────────────────


def test_signals_carry_what_they_say():
    assert Snooze("30s").due == timedelta(seconds=30)
    assert Snooze(NOW).due == NOW
    assert Snooze(5).due == timedelta(seconds=5)
    assert RetryAfter(30).delay == timedelta(seconds=30)
    assert RetryAfter(0.25).delay == timedelta(milliseconds=250)
    assert str(RetryAfter(30)) == str(RetryAfter("30s")) == "retry after 30s"
    assert RetryAfter("10s").delay == timedelta(seconds=10)
    assert Dead("gone").reason == "gone"
    with pytest.raises(ConfigError, match="Snooze"):
        Snooze("later")


@pytest.mark.parametrize("wrong", [None, True, -1, float("nan"), float("inf"), 1e300, "30", b"30s", [30], "later"])
@pytest.mark.parametrize("signal", [Snooze, RetryAfter])
def test_signals_refuse_anything_else_in_one_sentence(signal, wrong):
    with pytest.raises(ConfigError, match=rf"^{signal.__name__} = .*(is not a duration: write|is out of range: 0 to)"):
        signal(wrong)


def test_signals_refuse_times_that_mean_nothing():
    with pytest.raises(ConfigError, match=r"RetryAfter = .* is not a duration: write 30 for seconds"):
        RetryAfter(cast("Any", NOW))
    with pytest.raises(ConfigError, match=r"Snooze = .* has no time zone"):
        Snooze(NOW.replace(tzinfo=None))
