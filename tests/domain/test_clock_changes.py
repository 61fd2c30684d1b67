"""Cron rules over clock changes, compared with a walk through every minute without a cron library.

A commit's run takes one zone of each kind and a few of its clock changes; HEADRACE_TEST_PROFILE=deep takes them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from headrace.model.job import NewJob
from headrace.model.lane import Lane
from headrace.policy.schedule import declare, latest, slots

DEEP = os.environ.get("HEADRACE_TEST_PROFILE") == "deep"
JOB = NewJob("t", b"", Lane())
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

EXPRESSIONS = (
    "* * * * *",
    "*/15 * * * *",
    "*/7 * * * *",
    "30 * * * *",
    "0 * * * SUN",
    "15,45 0-23 * * *",
    "0 */2 * * *",
    "*/20 */3 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "15,45 1-3 * * *",
    "*/10 2 * * *",
    "0 2 * * *",
    "30 2 * * SUN",
    "0 3 1-7 * *",
    "0 3 1 * SUN",
    "5 4 29 2 *",
)


# ── the plain walk ───────────────────────────────────────────────────────────

BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def numbers(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.replace("SUN", "0").split(","):
        body, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if body == "*" else body).partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return frozenset(found)


class Plain:
    """A rule of five fields, as a manual would explain it."""

    def __init__(self, text: str) -> None:
        fields = text.split()
        self.sets = [numbers(field, *bounds) for field, bounds in zip(fields, BOUNDS, strict=True)]
        self.either = not fields[2].startswith("*") and not fields[4].startswith("*")
        self.every_hour = len(self.sets[1]) == 24
        self.day_fits = cache(self._day_fits)

    def _day_fits(self, year: int, month: int, day: int) -> bool:
        if month not in self.sets[3]:
            return False
        dom, dow = day in self.sets[2], date(year, month, day).isoweekday() % 7 in self.sets[4]
        return dom or dow if self.either else dom and dow

    def fits(self, wall: datetime) -> bool:
        return (
            wall.minute in self.sets[0] and wall.hour in self.sets[1] and self.day_fits(wall.year, wall.month, wall.day)
        )


PLAIN = [Plain(text) for text in EXPRESSIONS]


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> list[list[datetime]]:
    """By expression, the instants at which it fires in (start, end]."""
    fired: list[list[datetime]] = [[] for _ in PLAIN]
    now = start - DAY  # long enough ago that the hand has been everywhere
    furthest = now.astimezone(zone).replace(tzinfo=None, fold=0)
    while now < end:
        now += MINUTE
        wall = now.astimezone(zone).replace(tzinfo=None, fold=0)
        fresh: list[datetime] = []
        while furthest < wall:
            furthest += MINUTE
            fresh.append(furthest)
        if now <= start:
            continue
        for rule, times in zip(PLAIN, fired, strict=True):
            if rule.fits(wall) if rule.every_hour else any(map(rule.fits, fresh)):
                times.append(now)
    return fired


# ── the zones ────────────────────────────────────────────────────────────────


def changes(zone: ZoneInfo, first: int, last: int) -> Iterator[tuple[datetime, timedelta]]:
    """When the clocks were turned, and by how much."""
    at, end = datetime(first, 1, 1, tzinfo=UTC), datetime(last, 1, 1, tzinfo=UTC)
    before = at.astimezone(zone).utcoffset() or timedelta(0)
    while at < end:
        at += DAY
        after = at.astimezone(zone).utcoffset() or timedelta(0)
        if after != before:
            low, high = at - DAY, at
            while high - low > MINUTE:
                middle = low + (high - low) // MINUTE // 2 * MINUTE
                if middle.astimezone(zone).utcoffset() == before:
                    low = middle
                else:
                    high = middle
            yield high, after - before
            before = after


def sample() -> list[tuple[str, datetime]]:
    """(zone, a change of its clocks); zones with the same changes count once."""
    found: list[tuple[str, datetime]] = []
    seen: set[object] = set()
    for name in sorted(available_timezones() - {"localtime", "posixrules", "Factory"}):
        turned = list(changes(ZoneInfo(name), *((2020, 2040) if DEEP else (2025, 2028))))
        if DEEP:
            found += [(name, at) for at, _ in turned]
            continue
        for at, by in turned:
            # The same step at the same local time is no other case on another date.
            local = at.astimezone(ZoneInfo(name))
            kind = (by, local.utcoffset(), local.time())
            if kind not in seen:
                seen.add(kind)
                found.append((name, at))
    return found


def compare(name: str, start: datetime, end: datetime) -> None:
    for text, expected in zip(EXPRESSIONS, walk(ZoneInfo(name), start, end), strict=True):
        schedule = declare("s", cron=text, tz=name, job=JOB)
        assert slots(schedule, start, end, 100_000) == expected, (name, text, start)
        assert latest(schedule, start, end, 50) == expected[-50:], (name, text, start)
        for at in (start + HOUR, start + 0.37 * (end - start), start + 0.5 * (end - start), end - HOUR):
            # From any instant on, in whichever pass of a fold it is.
            middle = at.replace(second=0, microsecond=0)
            after = [slot for slot in expected if slot > middle]
            assert slots(schedule, middle, end, 100_000) == after, (name, text, middle)
            assert latest(schedule, start, middle, 5) == [slot for slot in expected if slot <= middle][-5:], (
                name,
                text,
                middle,
            )


@pytest.mark.timeout(0 if DEEP else 120)
def test_every_kind_of_clock_change_agrees_with_a_walk_through_the_minutes():
    cases = sample()
    assert len(cases) >= 15
    for name, at in cases:
        compare(name, at - 10 * HOUR, at + 10 * HOUR)


# ── the hard ones, by name ───────────────────────────────────────────────────


def fires(cron: str, tz: str, start: str, days: int = 1) -> list[str]:
    """The local times at which a rule fires from a local midnight on."""
    begin = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(tz)).astimezone(UTC) - timedelta(seconds=1)
    found = slots(declare("s", cron=cron, tz=tz, job=JOB), begin, begin + days * DAY, 10_000)
    return [f"{slot.astimezone(ZoneInfo(tz)):%d %H:%M:%S%z}" for slot in found]


def test_new_york():
    assert fires("30 2 * * *", "America/New_York", "2026-03-08") == ["08 03:00:00-0400"]
    assert fires("30 1 * * *", "America/New_York", "2026-11-01") == ["01 01:30:00-0400"]
    assert len(fires("* * * * *", "America/New_York", "2026-03-08")) == 1440  # 23 hours of that day, one of the next
    assert [at[:8] for at in fires("0 * * * *", "America/New_York", "2026-11-01")][:4] == [
        "01 00:00",
        "01 01:00",
        "01 01:00",
        "01 02:00",
    ]


def test_seconds_follow_the_same_rules():
    assert fires("0 30 2 * * *", "America/New_York", "2026-03-08") == ["08 03:00:00-0400"]
    assert fires("15 30 1 * * *", "America/New_York", "2026-11-01") == ["01 01:30:15-0400"]
    assert fires("*/20 59 1-2 * * *", "Europe/Paris", "2026-03-29") == [
        "29 01:59:00+0100",
        "29 01:59:20+0100",
        "29 01:59:40+0100",
        "29 03:00:00+0200",
    ]


def test_half_an_hour_and_midnight():
    assert fires("45 1 * * *", "Australia/Lord_Howe", "2026-04-05") == ["05 01:45:00+1100"]
    assert fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-04") == ["04 02:30:00+1100"]
    assert fires("0 0 * * *", "America/Santiago", "2026-09-06", 2)[:2] == ["06 01:00:00-0300", "07 00:00:00-0300"]
    assert fires("30 0 * * *", "America/Havana", "2026-11-01") == ["01 00:30:00-0400"]


def test_a_day_that_was_left_out():
    assert fires("0 12 * * *", "Pacific/Apia", "2011-12-29", 2) == [
        "29 12:00:00-1000",
        "31 00:00:00+1400",
        "31 12:00:00+1400",
    ]


def test_leap_days():
    assert fires("0 0 29 2 *", "UTC", "2025-01-01", 365 * 8) == ["29 00:00:00+0000"] * 2
