"""Schedules: what is refused and why, slots, catching up, and the ids of slots."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.errors import ConfigError, InvalidCron, NeverFires
from headrace.model.cron import check_cron
from headrace.model.job import JobState, Key, NewJob, UniqueLock, split_id
from headrace.model.lane import Lane
from headrace.policy.schedule import ON_TIME, Schedule, declare, due, latest, next_slot, slot_batch, slot_job, slots
from headrace.task.codec import JobOptions, encode_options

OWN = encode_options(JobOptions(timeout=5))
JOB = NewJob("t", b"{}", Lane("mail", 3, "acme"), options=OWN)
NOW = datetime(2026, 5, 4, 12, 0, 0, 250_000, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

LOCK = UniqueLock("k", frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING}), replace=True)
QUIET = NewJob("t", b"", Lane(), due=MINUTE, unique=LOCK)


def make(name: str = "s", job: Any = JOB, **rule: Any) -> Schedule:
    return declare(name, job=job, **rule)


# ── what is refused ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("* * * * *\n* * * * * root id", "one line"),
        ("0 0 * * *\n", "one line"),
        ("0 0 * * \u0661", "ASCII"),
        ("@reboot", "cannot run at boot"),
        ("@never", "@daily"),
        ("*/0 * * * *", "minute"),
        ("60 * * * *", "minute field is wrong: 0 to 59"),
        ("5-1 * * * *", "the range 5-1 runs backwards; write 5-59,0-1"),
        ("0 22-2 * * *", "the range 22-2 runs backwards; write 22-23,0-2"),
        ("0 1,22-2/3 * * *", "the range 22-2/3 runs backwards; write each of its values"),
        ("0 0 * * FRI-MON", "the range FRI-MON runs backwards; write 5-6,0-1"),
        ("0 0 * * SAT-SUN", "the range SAT-SUN runs backwards; write 6,0"),
        ("0 0 * * 7-2", "the range 7-2 runs backwards; write 0-2"),
        ("0 0 1 NOV-FEB *", "the range NOV-FEB runs backwards; write 11-12,1-2"),
        ("0 0 30-2 * *", "the range 30-2 runs backwards; write 30-31,1-2"),
        ("70-2 * * * *", "minute field is wrong: 0 to 59"),
        ("*/61 * * * *", "the step of */61 is wider than the minute field, which has 60 values"),
        ("0 1,2/25 * * *", "the step of 2/25 is wider than the hour field"),
        ("*/90 * * * * *", "the step of */90 is wider than the second field"),
        ("0 0 */32 * *", "day-of-month"),
        ("0 0 1 */13 *", "month field, which has 12 values"),
        ("0 0 * * */8", "day-of-week field, which has 7 values"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day-of-month"),
        ("* * 32 * *", "1 to 31"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("* * * * MON#6", "day-of-week"),
        ("61 * * * * *", "second"),
        ("", "0 fields"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("every day", "2 fields"),
        ("1" * 10_240, "10,240 characters"),
        ("1," * 100 + " * * * *", "minute"),
        (None, "either cron"),
        (5, "write"),
    ],
)
def test_a_malformed_expression_is_refused_at_once(cron: Any, says: str):
    begun = time.thread_time()
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        make(cron=cron)
    assert time.thread_time() - begun < 5  # of the processor, on any machine; what is tried in vain would take hours
    assert str(refused.value).startswith("schedule s: ")
    assert cron is None or (isinstance(refused.value, InvalidCron) and refused.value.code == "invalid_cron")


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 FEB *", "0 0 0 31 2 *"])
def test_a_rule_that_never_fires_is_refused(cron: str):
    with pytest.raises(NeverFires, match="never fires") as refused:
        make(cron=cron)
    assert refused.value.code == "never_fires"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "either cron"),
        ({"cron": "@daily", "every": "1h"}, "either cron"),
        ({"cron": "@daily", "tz": "Europe/Roma"}, "did you mean 'Europe/Rome'"),
        ({"cron": "@daily", "tz": "../../etc/passwd"}, "not a time zone"),
        ({"cron": "@daily", "tz": "Europe"}, "not a time zone"),
        ({"cron": "@daily", "tz": "x" * 10_000}, "not a time zone"),
        ({"cron": "@daily", "tz": ""}, "not a time zone"),
        ({"cron": "@daily", "tz": "a\0b"}, "not a time zone"),
        ({"every": "1h", "tz": "Europe/Rome"}, "leave out tz"),
        ({"every": "999ms"}, "at least 1s"),
        ({"every": "0s"}, "at least 1s"),
        ({"every": "-1s"}, "not a duration"),
        ({"every": "soon"}, "not a duration"),
        ({"every": 15}, "not a duration"),
        ({"every": "1h", "overlap": "never"}, "allow, skip, cancel"),
        ({"every": "1h", "catch_up": "all"}, '"none", "last"'),
        ({"every": "1h", "catch_up": "all(0)"}, "1 to 1,000"),
        ({"every": "1h", "catch_up": "all(1001)"}, "1 to 1,000"),
        ({"every": "1h", "catch_up": all}, '"none", "last"'),
        ({"every": "1h", "jitter": "2h"}, "overtake"),
        ({"every": "1h", "jitter": "-1s"}, "not a duration"),
        ({"every": "1h", "job": NewJob("t", b"", Lane(), key=Key("k", DAY, b""))}, "no key"),
        ({"every": "1h", "job": NewJob("t", b"", Lane(), due=NOW)}, "no run_at"),
        ({"every": "1h", "job": "report"}, "write job=task.job(…)"),
        ({"every": "1s", "job": QUIET}, "waits for 1m and the next slot, which is never later than that"),
        ({"every": "1m", "job": QUIET}, "it would never run"),
        ({"cron": "* * * * *", "job": QUIET}, "it would never run"),
        ({"cron": "*/30 * * * * *", "tz": "Europe/Rome", "job": QUIET}, "it would never run"),
    ],
)
def test_a_bad_declaration_is_refused_with_the_fix(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=re.escape(says)):
        make(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"every": "61s", "job": QUIET},
        {"cron": "*/2 * * * *", "job": QUIET},
        {"cron": "* 9-17 * * MON-FRI", "job": QUIET},  # every minute, and quiet from 18 on
        {"every": "1s", "job": replace(QUIET, due=None)},
        {"every": "1s", "job": replace(QUIET, unique=replace(LOCK, replace=False))},
        {"every": "1m", "job": replace(QUIET, unique=replace(LOCK, within=SECOND))},
        {"every": "1m", "job": replace(QUIET, unique=replace(LOCK, states=frozenset({JobState.RUNNING})))},
        {"cron": "*/60 * * * *"},
    ],
)
def test_what_can_run_is_not_refused(options: dict[str, Any]):
    assert make(**options).name == "s"


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 64, "a\n", "é", None, "x;drop"])
def test_a_bad_name_is_refused(name: Any):
    with pytest.raises(ConfigError, match="schedule name"):
        make(name, every="1h")


@given(st.text("0123456789*/,-#LW@ MONFEB", max_size=40))
def test_any_text_is_read_or_refused(text: str):
    try:
        cron = check_cron(text)
    except InvalidCron:
        return
    assert check_cron(cron) == cron
    assert next_slot(make(cron=cron), NOW) is not None


# ── slots ────────────────────────────────────────────────────────────────────


def test_aliases_and_names():
    for alias, plain in (("@daily", "0 0 * * *"), ("@Hourly", "0 * * * *"), ("@weekly", "0 0 * * 0")):
        assert make(cron=alias).cron == plain
    assert next_slot(make(cron="0 9 * jan-mar mon"), NOW) == datetime(2027, 1, 4, 9, tzinfo=UTC)
    assert next_slot(make(cron="0 9 L * *"), NOW) == datetime(2026, 5, 31, 9, tzinfo=UTC)
    assert next_slot(make(cron="0 9 * * MON#2"), NOW) == datetime(2026, 5, 11, 9, tzinfo=UTC)


def test_a_slot_is_after_the_time_asked_for():
    daily = make(cron="0 12 * * *")
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    assert next_slot(daily, noon - timedelta(microseconds=1)) == noon
    assert next_slot(daily, noon) == noon + DAY
    assert latest(daily, noon - DAY, noon, 9) == [noon]
    assert latest(daily, noon - DAY, noon - timedelta(microseconds=1), 9) == []


def test_intervals_are_the_same_after_a_restart():
    quarter = make(every="15m")
    assert slots(quarter, NOW, NOW + HOUR, 9) == [
        datetime(2026, 5, 4, 12, 0, tzinfo=UTC) + n * 15 * MINUTE for n in (1, 2, 3, 4)
    ]
    assert slots(quarter, NOW + 7 * MINUTE, NOW + HOUR, 2) == slots(quarter, NOW, NOW + HOUR, 2)
    assert latest(quarter, NOW - DAY, NOW, 2) == [NOW.replace(microsecond=0) - 15 * MINUTE, NOW.replace(microsecond=0)]


def test_the_next_slot_is_found_quickly():
    rules = [
        make(cron=c, tz="America/New_York") for c in ("0 0 29 2 MON", "0 * 29 2 *", "0 0 * 2 MON#5", "5 4 31 12 *")
    ]
    begun = time.thread_time()
    assert all(next_slot(rule, NOW) for rule in rules)
    assert time.thread_time() - begun < 5  # of the processor, on any machine


# ── what to fire ─────────────────────────────────────────────────────────────

SLOT = datetime(2026, 5, 4, 12, tzinfo=UTC)


def test_nothing_is_due_between_slots():
    assert due(make(every="1h"), SLOT, SLOT + 59 * MINUTE) is None


def test_a_slot_on_time_fires_whatever_catch_up_says():
    for catch_up in ("none", "last", "all(2)"):
        found = due(make(every="1h", catch_up=catch_up), SLOT - HOUR, SLOT + ON_TIME - SECOND)
        assert found is not None
        assert (found.fire, found.missed, found.until) == ((SLOT,), None, SLOT)


def test_a_stall_of_seconds_loses_no_slot():
    found = due(make(every="1s", catch_up="none"), SLOT, SLOT + 20 * SECOND)
    assert found is not None
    assert found.fire == tuple(SLOT + n * SECOND for n in range(1, 21))


@pytest.mark.parametrize(
    ("catch_up", "fired", "missed"),
    [("none", 0, 10), ("last", 1, 9), ("all(3)", 3, 7), ("all(10)", 10, 0), ("all(99)", 10, 0)],
)
def test_catching_up_after_downtime(catch_up: str, fired: int, missed: int):
    expected = [SLOT + n * HOUR for n in range(1, 11)]
    for rule in ({"every": "1h"}, {"cron": "@hourly"}, {"cron": "0 0-22,23 * * *", "tz": "Asia/Tokyo"}):
        found = due(make(catch_up=catch_up, **rule), SLOT, SLOT + 10 * HOUR + 30 * MINUTE)
        assert found is not None
        assert found.fire == tuple(expected[10 - fired :])
        assert (found.missed.count if found.missed else 0) == missed
        assert found.until == expected[-1]
        if found.missed:
            assert (found.missed.after, found.missed.until) == (SLOT, expected[missed - 1])


def test_last_means_the_last_of_all():
    found = due(make(every="1h", catch_up="last"), SLOT, SLOT + 3 * HOUR + SECOND)
    assert found is not None
    assert found.fire == (SLOT + 3 * HOUR,)
    assert found.missed is not None
    assert found.missed.count == 2


def test_a_long_downtime_is_decided_quickly():
    begun = time.thread_time()
    found = due(make(cron="* * * * * *", tz="Europe/Rome", catch_up="all(1000)"), SLOT - 900 * DAY, SLOT)
    assert time.thread_time() - begun < 20  # of the processor, on any machine
    assert found is not None
    assert len(found.fire) == 1030
    assert found.missed is not None
    assert found.missed.more


@given(
    st.sampled_from(["none", "last", "all(1)", "all(5)"]),
    st.lists(st.integers(0, 4000), min_size=1, max_size=12),
    st.sampled_from(
        [{"every": "7s"}, {"every": "10m"}, {"cron": "*/5 * * * *"}, {"cron": "30 2 * * *", "tz": "Europe/Paris"}]
    ),
)
def test_every_slot_is_fired_or_missed_exactly_once(catch_up: str, steps: list[int], rule: dict[str, Any]):
    """However late and however often a worker looks."""
    schedule = make(catch_up=catch_up, **rule)
    start = cursor = now = datetime(2026, 3, 29, 0, 0, tzinfo=UTC)
    decided: list[datetime] = []
    for step in steps:
        now += step * SECOND
        found = due(schedule, cursor, now)
        if found is None:
            continue
        if found.missed:
            decided += slots(schedule, found.missed.after, found.missed.until, 10_000)
        decided += found.fire
        cursor = found.until
    assert decided == slots(schedule, start, now, 10_000)


# ── the job of a slot ────────────────────────────────────────────────────────


def test_the_id_says_schedule_and_slot():
    id = slot_batch("nightly", SLOT)
    assert id == slot_batch("nightly", SLOT)
    assert id.version == 7
    assert id.int >> 80 == int(SLOT.timestamp() * 1000)
    assert split_id(id) == (id, 0)
    assert len({slot_batch(name, SLOT + n * SECOND) for name in ("a", "b") for n in range(1000)}) == 2000


def test_the_job_of_a_slot():
    plain = slot_job(make(every="1h"), SLOT)
    assert (plain.task, plain.payload, plain.lane, plain.options, plain.due) == ("t", b"{}", JOB.lane, OWN, None)
    later = slot_job(make(every="1h", job=NewJob("t", b"", Lane(), due=5 * MINUTE)), SLOT)
    assert later.due == SLOT + 5 * MINUTE


def test_jitter_is_the_slots_own_and_spread_out():
    schedule = make(every="1h", jitter="10m")
    waits = [slot_job(schedule, SLOT + n * HOUR).due for n in range(200)]
    assert waits == [slot_job(schedule, SLOT + n * HOUR).due for n in range(200)]
    spread = [wait - (SLOT + n * HOUR) for n, wait in enumerate(waits) if isinstance(wait, datetime)]
    assert all(timedelta(0) <= each <= 10 * MINUTE for each in spread)
    assert min(spread) < MINUTE
    assert max(spread) > 9 * MINUTE
