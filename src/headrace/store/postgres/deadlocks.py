"""Deadlocks: the pool repeats a call that the server ended to break one. This module logs that."""

from __future__ import annotations

import logging
import time
from typing import Final

from headrace.store.postgres import faults

log = logging.getLogger("headrace.store")
DEADLOCK: Final = "40P01"
_QUIET: Final = 60.0
"""Seconds without a deadlock after which the next one is logged again."""


class Deadlocks:
    """Counts the deadlocks of one pool, and logs the first one of each outage."""

    def __init__(self) -> None:
        self.count = 0
        self._last: float | None = None

    def note(self, error: BaseException, shown: str) -> None:
        """Count an error if it is a deadlock. Each costs a second or more of waiting, though the call is repeated."""
        if faults.sqlstate(error) != DEADLOCK:
            return
        now = time.monotonic()
        quiet = self._last is None or now - self._last > _QUIET
        self.count, self._last = self.count + 1, now
        if quiet:
            log.warning(
                "PostgreSQL at %s ended a call to break a deadlock, and the store repeats it (%d so far): %s",
                shown,
                self.count,
                getattr(error, "detail", None) or error,
                extra={"deadlocks": self.count},
            )
