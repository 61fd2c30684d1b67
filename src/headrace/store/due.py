"""Hints about times at which `promote` will find something, for stores that keep them in this process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import Final

from headrace.model.job import Due

HORIZON: Final = timedelta(minutes=1)
"""A job that is due later needs no hint, because workers call `promote` more often than that."""
AT_ONCE: Final = timedelta(0)


def hint_of(due: Due) -> timedelta | None:
    """After which time `promote` should look for a job with this due time. None: it needs no hint."""
    if due is None:
        return None
    if isinstance(due, timedelta):
        return due if due < HORIZON else None
    # The clock of this machine may be wrong, so only the answer of `promote` says when exactly the job is due.
    return AT_ONCE if due - datetime.now(UTC) < HORIZON else None


class DueHints:
    """The earliest time that this store object knows of, and the hints of earlier ones."""

    def __init__(self) -> None:
        self._known = inf
        """On the monotonic clock. Later hints change nothing, because a look at this time finds their jobs' times."""
        self._hinted = inf
        """The earliest hint that `wait` has not returned yet."""
        self._bell = asyncio.Event()

    def hint(self, after: timedelta) -> None:
        """Something may be due after this time."""
        at = monotonic() + after.total_seconds()
        if at < self._known:
            self._known = self._hinted = at
            self._bell.set()

    def asking(self) -> None:
        """A call of `promote` begins. It finds what the hints up to now are about. Any later hint is news."""
        self._known = self._hinted = inf
        self._bell.clear()

    def answered(self, after: timedelta | None) -> None:
        """The call is answered: the next time is known."""
        if after is not None:
            self._known = min(self._known, monotonic() + after.total_seconds())

    async def wait(self, timeout: float) -> timedelta | None:
        """See `Hinting.wait_due`."""
        try:
            async with asyncio.timeout(timeout):
                await self._bell.wait()
        except TimeoutError:
            return None
        self._bell.clear()
        at, self._hinted = self._hinted, inf
        return timedelta(seconds=max(0.0, at - monotonic())) if at < inf else None
