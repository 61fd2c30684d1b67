"""Cron expressions: their one spelling, and the instants they name in a time zone, through clock changes.

A rule that runs in every hour of the day (`*/15 * * * *`) follows elapsed time: it fires at every instant whose
local time fits. Any other rule follows the wall clock: each time of day that fits fires once. A time that a clock change
leaves out fires at the first instant after the gap; one that comes twice fires the first time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from headrace.errors import InvalidCron, InvalidTimezone, NeverFires

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_LONGEST_EXPRESSION: Final = 256
_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MAY_BE: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L (the last) or LW (the last weekday)",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday) or SUN to SAT, MON#2 (the second), 5L (the last Friday)",
}
_SPAN: Final = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day-of-month": (1, 31),
    "month": (1, 12),
    "day-of-week": (0, 6),
}
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_NUMBERS: Final = {
    **{name: number for number, name in enumerate(_MONTHS, 1)},
    **{name: number for number, name in enumerate(_WEEKDAYS)},
}
_RANGE: Final = re.compile(r"(\w+)-(\w+)(/\w+)?", re.ASCII)
_NO_PLACE: Final = re.compile(r"posixrules|localtime|Factory|(posix|right)/.*", re.DOTALL)
"""Files of time zone data that are no zones: their content differs between machines, or counts leap seconds."""
_STEP: Final = re.compile(r".*/(\d+)", re.ASCII)


def check_cron(expression: str) -> str:
    """The expression in one spelling, with aliases resolved. Raises InvalidCron or NeverFires."""
    if not isinstance(expression, str):
        raise InvalidCron(f'cron = {expression!r:.80}: write "0 3 * * *" or "@daily"')
    if len(expression) > _LONGEST_EXPRESSION:
        raise InvalidCron(f"cron has {len(expression):,} characters: at most {_LONGEST_EXPRESSION}")
    shown = f"cron = {expression!r}"
    if not expression.isascii() or not expression.isprintable():
        raise InvalidCron(f"{shown} must be one line of ASCII characters")
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in _ALIASES:
            why = "a schedule cannot run at boot: enqueue when your program starts" if text.lower() == "@reboot" else ""
            raise InvalidCron(f"{shown}: {why or 'known are ' + ', '.join(_ALIASES)}")
        return _ALIASES[text.lower()]
    fields = text.upper().split()
    if len(fields) not in {5, 6}:
        raise InvalidCron(
            f"{shown} has {len(fields)} fields: write 5 (minute hour day month weekday), or 6 with seconds first"
        )
    try:
        firing = next(CronSim(" ".join(fields), datetime(2000, 1, 1)), None)  # noqa: DTZ001 - naive: no zone is asked
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        if field == "day-of-month" and _day_is_well_formed(fields):
            firing = None
        else:
            why = _backwards(field, fields) or _MAY_BE.get(field, "")
            raise InvalidCron(f"{shown}: the {field} field is wrong: {why}") from None
    if firing is None:
        raise NeverFires(f"{shown} never fires: no month it names has that day")
    for name, field in _named(fields):
        _check_steps(shown, name, field)
    return " ".join(fields)


def _named(fields: list[str]) -> Iterator[tuple[str, str]]:
    return zip(list(_SPAN)[-len(fields) :], fields, strict=True)


def _backwards(name: str, fields: list[str]) -> str | None:
    """How to write a range that runs backwards, if that is what is wrong with the field."""
    if name not in _SPAN:
        return None
    lowest, highest = _SPAN[name]
    for part in dict(_named(fields))[name].split(","):
        if (match := _RANGE.fullmatch(part)) is None:
            continue
        first, last = _number(match[1]), _number(match[2])
        if first is None or last is None or not lowest <= last < first <= highest + (name == "day-of-week"):
            continue
        # Sunday may be written as 7, and is the first day of the week nevertheless.
        ranges = ((first, highest), (lowest, last)) if first <= highest else ((lowest, last),)
        forward = ",".join(f"{low}-{high}" if low < high else str(low) for low, high in ranges)
        return f"the range {part} runs backwards; write {'each of its values' if match[3] else forward}"
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else _NUMBERS.get(text)


def _check_steps(shown: str, name: str, field: str) -> None:
    lowest, highest = _SPAN[name]
    for part in field.split(","):
        match = _STEP.fullmatch(part)
        if match is not None and int(match[1]) > highest - lowest + 1:
            raise InvalidCron(
                f"{shown}: the step of {part} is wider than the {name} field, which has {highest - lowest + 1} values, so only "
                'the first of them would fit: write that one, or every="…" for an interval'
            )


def _day_is_well_formed(fields: list[str]) -> bool:
    """Whether the day of the month is wrong only together with the months."""
    try:
        CronSim(f"0 0 {fields[-3]} * *", datetime(2000, 1, 1))  # noqa: DTZ001 - naive: no zone is asked
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """The time zone, or an InvalidTimezone."""
    try:
        if not isinstance(name, str) or len(name) > 64 or _NO_PLACE.fullmatch(name):
            raise ValueError
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        known = available_timezones()
        from difflib import get_close_matches  # imported here, because only an error needs it

        near = get_close_matches(str(name)[:64], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else 'write e.g. "Europe/Rome"'
        if not known:
            hint = "this machine has no time zone data: install the package tzdata"
        raise InvalidTimezone(f"tz = {str(name)[:80]!r} is not a time zone: {hint}") from None


# ── walking ──────────────────────────────────────────────────────────────────


def forward(cron: str, after: datetime, where: ZoneInfo) -> Iterator[datetime]:
    """The instants after that one, in UTC, earliest first."""
    walk = _elapsed_forward if _every_hour(cron) else _wall_forward
    return walk(cron, after, where)


def backward(cron: str, until: datetime, where: ZoneInfo) -> Iterator[datetime]:
    """The instants up to that one, in UTC, latest first."""
    walk = _elapsed_backward if _every_hour(cron) else _wall_backward
    return walk(cron, until.replace(microsecond=0), where)


@lru_cache(maxsize=1024)
def _every_hour(cron: str) -> bool:
    return len(CronSim(cron, datetime(2000, 1, 1)).hours) == 24  # noqa: DTZ001 - naive: no zone is asked


# The library gets naive times only. Its own treatment of clock changes depends on how a rule is spelt, and it skips
# repeated times where clocks change by half an hour.


def _wall_forward(cron: str, after: datetime, where: ZoneInfo) -> Iterator[datetime]:
    start = after.astimezone(where)
    # All of these times have fired in the first pass.
    walk = CronSim(cron, _fold_end(start) - _SECOND if start.fold else _naive(start))
    last = after
    while (naive := next(walk, None)) is not None:
        instant, shown = _instant(naive, where)
        if shown is not None:
            walk.dt = shown  # skip the gap at once, because a rule with seconds may have thousands of times in it
        if instant > last:
            last = instant
            yield instant


def _wall_backward(cron: str, until: datetime, where: ZoneInfo) -> Iterator[datetime]:
    start = until.astimezone(where)
    last: datetime | None = None
    for naive in CronSim(cron, _fold_end(start) if start.fold else _naive(start) + _SECOND, reverse=True):
        instant, _ = _instant(naive, where)
        if instant <= until and instant != last:
            last = instant
            yield instant


def _elapsed_forward(cron: str, after: datetime, where: ZoneInfo) -> Iterator[datetime]:
    offset = _offset(after, where)
    walk = CronSim(cron, (after + offset).replace(tzinfo=None))
    while (naive := next(walk, None)) is not None:
        instant = naive.replace(tzinfo=UTC) - offset
        change = _first_change(after, instant, where)
        if change is None:
            after = instant
            yield instant
        else:
            after, offset = change, _offset(change, where)
            walk.dt = (change + offset - _SECOND).replace(tzinfo=None)


def _elapsed_backward(cron: str, until: datetime, where: ZoneInfo) -> Iterator[datetime]:
    offset = _offset(until, where)
    walk = CronSim(cron, (until + offset + _SECOND).replace(tzinfo=None), reverse=True)
    while (naive := next(walk, None)) is not None:
        instant = naive.replace(tzinfo=UTC) - offset
        change = _last_change(instant, until, where)
        if change is None:
            until = instant
            yield instant
        else:
            until = change - _SECOND
            offset = _offset(until, where)
            walk.dt = (change + offset).replace(tzinfo=None)


# ── clock changes ────────────────────────────────────────────────────────────


def _naive(local: datetime) -> datetime:
    return local.replace(tzinfo=None, fold=0)


def _offset(instant: datetime, where: ZoneInfo) -> timedelta:
    return instant.astimezone(where).utcoffset() or timedelta(0)


def _first_change(after: datetime, until: datetime, where: ZoneInfo) -> datetime | None:
    """The first clock change in (after, until]. No zone has two within a day."""
    while after < until:
        step = min(until, after + _DAY)
        if _offset(step, where) != _offset(after, where):
            return _change(after, step, where)
        after = step
    return None


def _last_change(after: datetime, until: datetime, where: ZoneInfo) -> datetime | None:
    """The last clock change in (after, until]."""
    while after < until:
        step = max(after, until - _DAY)
        if _offset(step, where) != _offset(until, where):
            return _change(step, until, where)
        until = step
    return None


def _instant(naive: datetime, where: ZoneInfo) -> tuple[datetime, datetime | None]:
    """The first instant at which a wall clock shows that time, and its local time; for a gap, those after it."""
    early, late = naive.replace(tzinfo=where), naive.replace(tzinfo=where, fold=1)
    if early.utcoffset() == late.utcoffset():
        return early.astimezone(UTC), None
    first, second = early.astimezone(UTC), late.astimezone(UTC)
    if second > first:
        return first, None
    change = _change(second, first, where)
    return change, _naive(change.astimezone(where))


def _fold_end(local: datetime) -> datetime:
    """For a time in its second pass: the local time without the clock change."""
    assert isinstance(local.tzinfo, ZoneInfo)
    first = local.replace(fold=0)
    change = _change(first.astimezone(UTC), local.astimezone(UTC), local.tzinfo)
    return (change + (first.utcoffset() or timedelta(0))).replace(tzinfo=None)


def _change(before: datetime, after: datetime, where: ZoneInfo) -> datetime:
    """The first second in (before, after] with the new offset."""
    before = before.replace(microsecond=0)
    offset = _offset(before, where)
    low, high = 0, -((before - after) // _SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(before + middle * _SECOND, where) == offset:
            low = middle
        else:
            high = middle
    return before + high * _SECOND
