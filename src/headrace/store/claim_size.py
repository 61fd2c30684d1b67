"""How many jobs a claim asks for, so that one lease has only so many bytes of payload."""

from __future__ import annotations

from typing import Final

from headrace.model.lease import LEASE_BYTES

LARGE: Final = 2000
"""A longer payload is large. As many of this length as a lease may have are within its bytes."""
_AIM: Final = 0.8
"""The part of a lease's bytes that a claim aims at where payloads differ in length. Where they do not, it aims at all."""
_UNKNOWN: Final = 0.25
"""By which part averages are taken to differ before there are two of them."""
_CAREFUL: Final = 100
"""Claims without a large payload after which the next ones are expected to meet none."""


class ClaimSize:
    """Learns from each claim how large jobs are, because a store knows their lengths only when it has taken them.

    While claims meet large payloads, a store asks for as many jobs as most likely fit, and checks the lengths. Claims of
    small jobs skip that, because it takes time. One that meets too many bytes after all is undone and repeated.
    """

    def __init__(self) -> None:
        self._average = 0.0
        self._differs = _UNKNOWN
        """By which part the averages of the last claims differ."""
        self._careful = 1

    @property
    def careful(self) -> bool:
        """Whether the next claim may meet large payloads."""
        return self._careful > 0

    def limit(self, asked: int) -> int:
        """How many of the jobs that the worker asks for most likely fit."""
        if not self._average:
            return asked
        return max(1, min(asked, int(max(_AIM, 1 - self._differs) * LEASE_BYTES / self._average)))

    def expect_large(self) -> None:
        self._careful = _CAREFUL

    def learn(self, jobs: int, large: int) -> None:
        """A claim got so many jobs, and so many bytes of large payloads."""
        average = large / jobs
        if self._average:
            self._differs = max(abs(average / self._average - 1), self._differs / 4)
        self._average = average if average > self._average else (self._average + average) / 2
        if large:
            self.expect_large()
        elif self._careful:
            self._careful -= 1
            if not self._careful:
                self._average, self._differs = 0.0, _UNKNOWN
