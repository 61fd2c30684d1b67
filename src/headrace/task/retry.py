"""The retry policy as a task declares it; what follows from an outcome is decided in `policy/retry.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headrace.errors import ConfigError
from headrace.model import duration

MOST_ATTEMPTS: Final = 1000

_TOO_MUCH = 600
"""The largest exponent: e to the power of this is a float, and more than any cap."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When a failed job is tried again: after `base × factor^(failures-1) × jitter`, drawn from what lies below `cap`."""

    max_attempts: int = 5
    """Failures after which the job is dead. 1: never tried again."""
    base: duration.Duration = "2s"
    """The delay after the first failure, before jitter."""
    factor: float = 2.0
    """Each further failure multiplies the delay by this factor."""
    cap: duration.Duration = "1h"
    """The longest delay."""
    jitter: tuple[float, float] = (0.5, 1.5)
    """The range of the random factor, which spreads the retries of jobs that failed together."""
    never: tuple[type[BaseException], ...] = ()
    """Exceptions that make the job dead at once."""
    max_crashes: int = 3
    """Worker deaths by its own fault after which the job is dead."""
    only: tuple[type[BaseException], ...] = ()
    """The only exceptions after which the job is tried again. Empty: all but those in `never`."""
    _base: timedelta = field(init=False, repr=False, compare=False)
    _cap: timedelta = field(init=False, repr=False, compare=False)
    _ranges: dict[int, tuple[float, float]] = field(init=False, repr=False, compare=False)
    """Failures → the seconds from which a delay is drawn: the shortest, and how many more there may be."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_base", duration.parse(self.base, name="Retry.base"))
        object.__setattr__(self, "_cap", duration.parse(self.cap, name="Retry.cap"))
        object.__setattr__(self, "_ranges", {})
        for name in ("max_attempts", "max_crashes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
                raise ConfigError(f"Retry.{name} = {value!r}: a whole number from 1 to {MOST_ATTEMPTS}")
        if not 1 <= self.factor <= 100:
            raise ConfigError(f"Retry.factor = {self.factor!r}: from 1 to 100")
        low, high = self.jitter
        if not 0 <= low <= high <= 10:
            raise ConfigError(f"Retry.jitter = {self.jitter!r}: (low, high) with 0 <= low <= high <= 10")
        for name in ("never", "only"):
            for kind in getattr(self, name):
                if not isinstance(kind, type) or not issubclass(kind, BaseException):
                    raise ConfigError(f"Retry.{name}: {kind!r} is not an exception class")

    def final(self, error: BaseException) -> bool:
        """Whether an exception of the task makes the job dead at once. Timeouts and crashes are no exceptions of it."""
        return isinstance(error, self.never) or (bool(self.only) and not isinstance(error, self.only))

    def delay(self, failures: int, rand: Callable[[], float]) -> timedelta:
        """How long to wait after the `failures`-th failure; `rand` gives 0 … 1."""
        drawn = self._ranges.get(failures)
        if drawn is None:
            drawn = self._ranges[failures] = self._range(failures)
        low, more = drawn
        return min(timedelta(seconds=low + more * rand()), self._cap)

    def _range(self, failures: int) -> tuple[float, float]:
        # The growth stops at the cap, before the power can overflow.
        seconds, cap = self._base.total_seconds(), self._cap.total_seconds()
        if (steps := failures - 1) > 0:
            growth = self.factor**steps if steps * math.log(self.factor) < _TOO_MUCH else 1e9
            seconds *= min(growth, 1e9)
        seconds = min(seconds, cap)
        low, high = self.jitter
        low, high = seconds * low, seconds * high
        # The cap bounds the range, not the random number, so that jobs that failed together do not all return at the
        # cap.
        if low < high:
            low, high = low if low < cap else cap * low / high, min(high, cap)
        return low, high - low
