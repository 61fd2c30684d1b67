"""Open hours: the hours of the week in which a queue's jobs may start, such as `22:00-06:00 Europe/Rome`."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = 24 * 60
_PART: Final = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))? )?(?P<from>\d\d:\d\d)-(?P<to>\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_HINT: Final = 'write "22:00-06:00 Europe/Rome", or "mon-fri 20:00-06:00, sat-sun 00:00-24:00 Europe/Rome"'
_AHEAD: Final = 9
"""Days to look for the next change. Every change comes again within a week; a change of the clock may delay it by hours."""


class Span(msgspec.Struct, frozen=True):
    """Hours that begin on some days of the week. They end on the next day if `end` is not after `start`."""

    days: tuple[int, ...]
    start: int
    """Minutes after midnight."""
    end: int

    def holds(self, day: int, minute: int) -> bool:
        if self.end > self.start:
            return day in self.days and self.start <= minute < self.end
        return (day in self.days and minute >= self.start) or ((day - 1) % 7 in self.days and minute < self.end)


class OpenHours(msgspec.Struct, frozen=True):
    """When a queue is open. The wall clock of the time zone counts, also when the clock changes."""

    text: str
    spans: tuple[Span, ...]
    tz: str

    def __str__(self) -> str:
        return self.text

    def is_open(self, at: datetime) -> bool:
        here = at.astimezone(_zone(self.tz))
        return any(span.holds(here.weekday(), 60 * here.hour + here.minute) for span in self.spans)

    def next_change(self, at: datetime) -> datetime | None:
        """When it next opens or closes. None: never, because it is always open."""
        now = self.is_open(at)
        before = at
        for change in self._candidates(at):
            if self.is_open(change) != now:
                return self._exact(before, change, now)
            before = change
        return None

    def _candidates(self, at: datetime) -> list[datetime]:
        """The instants after `at` that have the local time of an edge. A local time that comes twice has two."""
        here = _zone(self.tz)
        today = at.astimezone(here).date()
        minutes = {minute % _DAY for span in self.spans for minute in (span.start, span.end)}
        edges = {
            _local(today + timedelta(days=day), minute).replace(tzinfo=here, fold=fold).astimezone(UTC)
            for day in range(_AHEAD)
            for minute in minutes
            for fold in (0, 1)
        }
        return sorted(edge for edge in edges if edge > at)

    def _exact(self, before: datetime, change: datetime, now: bool) -> datetime:
        """The second of the change. It is not the edge's own time if a change of the clock leaves that time out."""
        while change - before > timedelta(seconds=1):
            middle = before + (change - before) / 2
            before, change = (middle, change) if self.is_open(middle) == now else (before, middle)
        return change if change.microsecond == 0 else change.replace(microsecond=0) + timedelta(seconds=1)


def _zone(name: str) -> ZoneInfo:
    """Most apps need no time zone, so this is imported when one does."""
    from headrace.model import cron

    return cron.zone(name)


def _local(day: date, minute: int) -> datetime:
    return datetime.combine(day, time(minute // 60, minute % 60))


def parse(value: Any, name: str = "open") -> OpenHours:
    """`[DAYS] HH:MM-HH:MM[, …] [TIME ZONE]`, or a ConfigError. Without a time zone it is UTC."""
    if isinstance(value, OpenHours):
        return value
    if not isinstance(value, str) or len(value) > 500:
        raise ConfigError(f"{name} = {value!r}: {_HINT}")
    text = " ".join(value.split())
    hours, _, last = text.rpartition(" ")
    tz = "UTC" if _PART.fullmatch(last) else last
    spans = tuple(
        _span(part.strip(), value, name) for part in (text if tz == "UTC" and last != tz else hours).split(",")
    )
    _zone(tz)
    return OpenHours(text, spans, tz)


def _span(part: str, value: str, name: str) -> Span:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConfigError(f"{name} = {value!r}: {part!r} is not a span of hours: {_HINT}")
    first = _day(match["first"] or "mon", value, name)
    last = _day(match["last"] or match["first"] or "sun", value, name)
    days = tuple((first + step) % 7 for step in range((last - first) % 7 + 1))
    start, end = _minute(match["from"], value, name), _minute(match["to"], value, name)
    if start in {end, _DAY}:
        raise ConfigError(f"{name} = {value!r}: {part!r} is empty; a whole day is 00:00-24:00")
    return Span(days, start, end)


def _day(text: str, value: str, name: str) -> int:
    if text.lower() not in _DAYS:
        raise ConfigError(f"{name} = {value!r}: {text!r} is not a day: write mon, tue, wed, thu, fri, sat or sun")
    return _DAYS.index(text.lower())


def _minute(text: str, value: str, name: str) -> int:
    hour, minute = int(text[:2]), int(text[3:])
    if 60 * hour + minute > _DAY or minute > 59:
        raise ConfigError(f"{name} = {value!r}: {text!r} is not a time of day: write 00:00 to 24:00")
    return 60 * hour + minute
