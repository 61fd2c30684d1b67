"""Times, numbers and texts in an explanation's sentences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from headrace.model import duration

_WIDTH = 160


class Times(msgspec.Struct, frozen=True):
    """Times, with their distance from now."""

    now: datetime

    def at(self, at: datetime) -> str:
        """A time that may be in the future: `… UTC (in 5m)`."""
        if at <= self.now:
            return f"{clock(at)} (now)"
        return f"{clock(at)} (in {duration.about(at - self.now)})"

    def past(self, at: datetime) -> str:
        """A time in the past: `at … UTC (5m ago)`."""
        return f"at {clock(at)} ({self.passed(at)} ago)"

    def passed(self, since: datetime) -> str:
        """How long ago it was: `5m`."""
        return duration.about(max(self.now - since, timedelta(0)))

    def since(self, at: datetime | None) -> str:
        """` since …`; empty where that is not known."""
        return "" if at is None else f" since {clock(at)} ({self.passed(at)})"

    def until(self, at: datetime | None) -> str:
        """` until …`; empty where that is not known."""
        return "" if at is None else f" until {self.at(at)}"


def clock(at: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def count(number: int, one: str, many: str = "") -> str:
    """`1 failure`, `2,000 failures`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def jobs(number: int, limit: int) -> str:
    """`5 jobs`; at the limit counting ended."""
    return f"{'at least ' if number >= limit else ''}{count(number, 'job')}"


def line(text: str) -> str:
    """A text on one line, shortened."""
    joined = " ".join(text.split())
    return joined if len(joined) <= _WIDTH else joined[: _WIDTH - 1] + "…"
