"""Open hours of a queue: what may be written, when it is open, and when that changes, through clock changes too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.policy.open_hours import parse


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("22:00-06:00", "2026-11-16T21:59", False),
        ("22:00-06:00", "2026-11-16T22:00", True),
        ("22:00-06:00", "2026-11-17T05:59", True),
        ("22:00-06:00", "2026-11-17T06:00", False),
        ("22:00-06:00 Europe/Rome", "2026-11-16T21:00", True),  # 22:00 there
        ("22:00-06:00 Europe/Rome", "2026-07-16T20:00", True),  # in summer, too
        ("22:00-06:00 Europe/Rome", "2026-07-16T19:59", False),
        ("fri 20:00-06:00", "2026-11-21T05:00", True),  # Saturday morning belongs to Friday's span
        ("fri 20:00-06:00", "2026-11-21T20:00", False),
        ("sat-sun 00:00-24:00, mon-fri 20:00-06:00", "2026-11-21T12:00", True),
        ("sat-sun 00:00-24:00, mon-fri 20:00-06:00", "2026-11-20T12:00", False),
        ("fri-mon 09:00-10:00", "2026-11-22T09:30", True),  # over the end of the week
        ("fri-mon 09:00-10:00", "2026-11-24T09:30", False),
    ],
)
def test_when_it_is_open(text: str, at: str, expected: bool):
    assert parse(text).is_open(utc(at)) is expected


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("22:00-06:00", "2026-11-16T12:00", "2026-11-16T22:00"),
        ("22:00-06:00", "2026-11-16T22:00", "2026-11-17T06:00"),
        ("22:00-06:00 Europe/Rome", "2026-11-16T12:00", "2026-11-16T21:00"),
        ("mon 09:00-10:00", "2026-11-16T10:00", "2026-11-23T09:00"),
        ("sat-sun 00:00-24:00", "2026-11-21T00:00", "2026-11-23T00:00"),  # midnight between them is no change
        # 02:30 does not exist on 29 March 2026 in Rome. The first instant after the gap is 03:00, 01:00 UTC.
        ("02:30-04:00 Europe/Rome", "2026-03-29T00:00", "2026-03-29T01:00"),
        # 02:30 comes twice on 25 October 2026: at 00:30 and at 01:30 UTC.
        ("02:30-04:00 Europe/Rome", "2026-10-25T00:00", "2026-10-25T00:30"),
    ],
)
def test_when_that_changes(text: str, at: str, expected: str):
    assert parse(text).next_change(utc(at)) == utc(expected)


def test_a_queue_that_is_always_open_never_changes():
    assert parse("mon-sun 00:00-24:00").next_change(utc("2026-11-16T12:00")) is None
    assert parse("00:00-12:00, 12:00-24:00").next_change(utc("2026-11-16T12:00")) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (7, 'write "22:00-06:00 Europe/Rome"'),
        ("", "is not a span of hours"),
        ("at night", "is not a span of hours"),
        ("22:00-06:00 Europe/Rom", "is not a time zone"),
        ("22:00", "is not a span of hours"),
        ("25:00-06:00", "'25:00' is not a time of day"),
        ("22:60-06:00", "'22:60' is not a time of day"),
        ("06:00-06:00", "a whole day is 00:00-24:00"),
        ("24:00-06:00", "is empty"),
        ("man 08:00-09:00", "'man' is not a day"),
        ("mon-fry 08:00-09:00", "'fry' is not a day"),
        ("08:00-09:00,, 10:00-11:00", "is not a span of hours"),
    ],
)
def test_what_is_refused(value: object, problem: str):
    with pytest.raises(ConfigError, match=problem):
        parse(value)


_TIMES = st.integers(0, 24 * 60 - 1).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
_SPANS = st.tuples(_TIMES, _TIMES).filter(lambda pair: pair[0] != pair[1]).map("-".join)
_INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  # hypothesis adds it


@settings(max_examples=60, deadline=None)
@given(st.lists(_SPANS, min_size=1, max_size=3), st.sampled_from(["UTC", "Europe/Rome", "America/New_York"]), _INSTANTS)
def test_nothing_changes_before_the_next_change(spans: list[str], tz: str, at: datetime):
    hours = parse(f"{', '.join(spans)} {tz}")
    now, change = hours.is_open(at), hours.next_change(at)
    end = at + timedelta(days=2) if change is None else change
    assert change is None or (hours.is_open(change) is not now and change > at)
    steps = min(200, int((end - at) / timedelta(minutes=1)))
    for step in range(1, steps + 1):
        between = at + (end - at) * step / (steps + 1)
        assert hours.is_open(between) is now or end - between < timedelta(seconds=2)
