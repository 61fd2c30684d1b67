"""How often somebody may do something: so many at once, then one after the other. Who it is and what follows is said elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEYS: Final = 10_000
"""Callers that are remembered."""
_NOTHING: Final = 1e-9


class RateLimit:
    """Counts by key, in bounded memory: whoever came longest ago is forgotten first."""

    def __init__(self, burst: int, every: float, clock: Callable[[], float], *, keys: int = KEYS) -> None:
        """So many at once, and one more every so many seconds."""
        self._burst = burst
        self._every = every
        self._clock = clock
        self._keys = keys
        self._free_at: OrderedDict[str, float] = OrderedDict()
        """key → when all of its tries will be back; the one seen last at the end."""

    def __len__(self) -> int:
        return len(self._free_at)

    def wait(self, key: str, weight: int = 1) -> float:
        """Count one of this key, or one that weighs more: 0, or the seconds until it may; then it was not counted."""
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
