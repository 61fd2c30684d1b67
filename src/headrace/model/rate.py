"""Rates as people write them, "50/s" "90/m" "1000/h" "5000/d", and what keeps to them; jobs per second inside."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from headrace.errors import ConfigError

_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SLICE = 0.1
"""Seconds' worth in one portion: a store is asked ten times a second at most, and nobody sees a burst."""


def parse(text: str, *, name: str = "rate") -> float:
    """So many per second from what the user wrote; a ConfigError that names the setting otherwise."""
    match = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not (number := float(match[1])):
        raise ConfigError(f'{name} = {text!r} is no rate: write "50/s", "90/m", "1000/h" or "5000/d"')
    return number / _SECONDS[match[2]]


def show(rate: float) -> str:
    """A rate as `parse` reads it, in the shortest time in which it comes to one or more."""
    unit = next((unit for unit, seconds in _SECONDS.items() if rate * seconds >= 0.9999), "d")
    return f"{rate * _SECONDS[unit]:.6g}/{unit}"


class Pacer:
    """Lets at most `rate` a second through, evenly; None: as fast as they come."""

    def __init__(
        self, rate: float | None, *, most: int, sleep: Callable[[float], Awaitable[object]], clock: Callable[[], float]
    ) -> None:
        self._rate = rate
        self._sleep = sleep
        self._clock = clock
        self._due = clock()
        self.portion = most if rate is None else max(1, min(most, int(rate * _SLICE)))
        """How many to take at once."""

    async def pace(self, count: int) -> None:
        """Wait until so many may go."""
        if self._rate is None:
            return
        if (early := self._due - self._clock()) > 0:
            await self._sleep(early)
        self._due = max(self._due, self._clock()) + count / self._rate
