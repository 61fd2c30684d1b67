"""Limits how often a caller may do something: a number at once, then one at a time. Callers choose the key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEYS: Final = 10_000
"""Keys that are kept in memory."""
_NOTHING: Final = 1e-9


class RateLimit:
    """Counts by key, in bounded memory. The key that was used longest ago is forgotten first."""

    def __init__(self, burst: int, every: float, clock: Callable[[], float], *, keys: int = KEYS) -> None:
        """`burst` at once, and one more after each period."""
        self._burst = burst
        self._every = every
        self._clock = clock
        self._keys = keys
        self._free_at: OrderedDict[str, float] = OrderedDict()
        """key → when all of its units are available again. The key used last is at the end."""

    def __len__(self) -> int:
        return len(self._free_at)

    def wait(self, key: str, weight: int = 1) -> float:
        """Count one use of this key, or a heavier one. Returns 0, or the seconds to wait; then it was not counted."""
        now = self._clock()
        free_at = max(self._free_at.pop(key, now), now)
        cost = weight * self._every
        wait = free_at + cost - now - self._burst * self._every
        if wait <= _NOTHING:
            free_at, wait = free_at + cost, 0.0
        self._free_at[key] = free_at
        while len(self._free_at) > self._keys:
            self._free_at.popitem(last=False)
        return wait
