"""Rates as people write them, "50/s" "90/m" "1000/h" "5000/d", and a pacer for them; jobs per second inside."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from headrace.errors import ConfigError

_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SLICE = 0.1
"""Seconds of work in one portion: at most ten calls of the store per second, and no visible burst."""


def parse(text: str, *, name: str = "rate") -> float:
    """Jobs per second from a user's text. Raises ConfigError, which names the setting."""
    match = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not (number := float(match[1])):
        raise ConfigError(f'{name} = {text!r} is not a rate: write "50/s", "90/m", "1000/h" or "5000/d"')
    return number / _SECONDS[match[2]]


def show(rate: float) -> str:
    """A rate as `parse` reads it, in the smallest unit of time that gives at least one."""
    unit = next((unit for unit, seconds in _SECONDS.items() if rate * seconds >= 0.9999), "d")
    return f"{rate * _SECONDS[unit]:.6g}/{unit}"


class Pacer:
    """Lets at most `rate` per second through, evenly. None: without a limit."""

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
        """Wait until that many may go."""
        if (early := self.early()) > 0:
            await self._sleep(early)
        self.take(count)

    def early(self) -> float:
        """Seconds until the next ones may go."""
        return 0.0 if self._rate is None else max(0.0, self._due - self._clock())

    def take(self, count: int) -> None:
        """Count that many as gone."""
        if self._rate is not None:
            self._due = max(self._due, self._clock()) + count / self._rate
