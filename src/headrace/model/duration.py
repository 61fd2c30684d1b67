"""Durations as people write them: "250ms" "30s" "5m" "2h" "7d"; `timedelta` inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from headrace.errors import ConfigError

Duration = str | timedelta
"""`"30s"` or a timedelta."""

LONGEST = timedelta(days=3650)

_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse(value: Duration, *, name: str = "duration") -> timedelta:
    """A timedelta from a user's text. Raises ConfigError, which names the setting."""
    if isinstance(value, timedelta):
        length = value
    elif match := _PATTERN.fullmatch(value.strip()):
        number, unit = match.groups()
        # A number with hundreds of digits overflows before it can be compared with the longest.
        seconds = float(number) * _SECONDS[unit]
        length = timedelta(seconds=min(seconds, 2 * LONGEST.total_seconds()))
    else:
        raise ConfigError(
            f'{name} = {value!r} is not a duration: write "250ms", "30s", "5m", "2h", "7d" or a timedelta'
        )
    if not timedelta(0) <= length <= LONGEST:
        raise ConfigError(f"{name} = {value!r} is out of range: 0 to {LONGEST.days} days")
    return length


def given(value: object, *, name: str) -> timedelta:
    """The same for an argument of any type, for callers without a type checker."""
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'{name} = {value!r} is not a duration: write "30s", "5m" or a timedelta')
    return parse(value, name=name)


def given_or_seconds(value: object, *, name: str) -> timedelta:
    """The same, where a plain number means seconds, as in an API's `Retry-After`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= LONGEST.total_seconds():  # also refuses NaN
            raise ConfigError(f"{name} = {value!r} seconds is out of range: 0 to {LONGEST.days} days")
        return timedelta(seconds=value)
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'{name} = {value!r} is not a duration: write 30 for seconds, "30s", "5m" or a timedelta')
    return parse(value, name=name)


def given_or_time(value: object, *, name: str, example: str) -> timedelta | datetime:
    """A duration or an aware datetime, from an argument of any type."""
    if isinstance(value, datetime):
        return check_aware(value, name=name)
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'{name} = {value!r}: write "{example}", a timedelta or an aware datetime')
    return parse(value, name=name)


def check_aware(value: datetime, *, name: str) -> datetime:
    """A time with a zone, or a ConfigError."""
    if value.utcoffset() is None:
        raise ConfigError(f"{name} = {value.isoformat()} has no time zone: add tzinfo, e.g. UTC")
    return value


def check_near(value: datetime, *, name: str) -> datetime:
    """A time with a zone that is at most LONGEST ahead and that every store can hold, or a ConfigError."""
    check_aware(value, name=name)
    try:
        ahead = value - datetime.now(UTC)
        value.astimezone(UTC)
    except OverflowError:
        raise ConfigError(f"{name} = {value.isoformat()} is out of range: it has no UTC time") from None
    if ahead > LONGEST:
        raise ConfigError(f"{name} = {value.isoformat()} is more than {LONGEST.days} days ahead")
    return value


def about(value: timedelta) -> str:
    """A duration for people, one short word: `350ms`, `12s`, `4m`, `3h`, `9d`."""
    amount = value.total_seconds()
    if round(amount * 1000) < 1000:
        return f"{amount * 1000:.0f}ms"
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        # Two hours are still two hours a moment after they were set.
        if round(amount / size, 2) >= 2:
            return f"{amount / size:.0f}{unit}"
    return f"{amount:.0f}s"


def show(value: timedelta) -> str:
    """The shortest way to write a duration that `parse` reads back."""
    milliseconds = round(value / timedelta(milliseconds=1))
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
