"""How much a worker claims ahead."""

from __future__ import annotations

from time import monotonic

from headrace.model.lease import MAX_LEASE

HORIZON = 0.025
"""Seconds of work to keep in line, so that no slot waits for the next claim."""


class Pace:
    """Jobs per second, and seconds per claim: how much to claim ahead."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.trip = 0.0
        self._jobs = 0
        self._at = monotonic()

    def measure(self, jobs: int) -> None:
        """`jobs` ended so far."""
        now = monotonic()
        seconds = now - self._at
        if seconds < 0.005:
            return
        fresh = (jobs - self._jobs) / seconds
        weight = min(1.0, seconds / 0.2 + 0.25)
        self.rate += (fresh - self.rate) * weight
        self._jobs, self._at = jobs, now

    def claimed(self, seconds: float) -> None:
        self.trip += (seconds - self.trip) * 0.2

    def forget(self) -> None:
        self.rate = 0.0

    @property
    def ahead(self) -> int:
        """How many jobs to keep in line: as many as end within a few claims' time. For long jobs: none."""
        return min(2 * MAX_LEASE, int(self.rate * max(HORIZON, 3 * self.trip)))
