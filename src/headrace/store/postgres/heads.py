"""Heads: where the next claim should look first, remembered by the client so that no session has to.

Two memories. The *ring*: per priority the lane that was served last, so that lanes take turns also behind a
transaction pooler. The *heads*: per lane the place that was claimed from last. While somebody holds a snapshot open,
claimed ranges stay in the index as dead entries in front of every lane, and walking over them costs more with every
claim. So after a search that met many, claims begin at the remembered heads for a while; a search of everything is
still made often enough that what lies before a head (a late commit, a retry, a new lane) waits for moments only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

_MANY: Final = 400
"""Dead index entries in one search, below which nobody would notice them."""
_SHARE: Final = 20.0
"""Searches of everything take at most one part in so many of the time."""
_KNOWN: Final = 200
"""Lanes remembered."""

Lane = tuple[int, str, str, int]
"""(priority, queue, tenant, lane)"""


class Heads:
    """What one store object remembers between its claims."""

    def __init__(self) -> None:
        self._ring: dict[int, tuple[str, str, int]] = {}
        self._heads: dict[Lane, int] = {}
        self._full_after = 0.0

    def args(self) -> tuple[tuple[Any, ...], bool]:
        """The ring_* and head_* arguments of claim, and whether this is a search of everything."""
        ring = self._ring
        turns = (
            (
                list(ring),
                [q for q, _, _ in ring.values()],
                [t for _, t, _ in ring.values()],
                [n for _, _, n in ring.values()],
            )
            if ring
            else (None,) * 4
        )
        if not self._heads or time.monotonic() >= self._full_after:
            return (*turns, None, None, None, None, None), True
        lanes = list(self._heads)
        columns = tuple([lane[i] for lane in lanes] for i in range(4))
        return (*turns, *columns, list(self._heads.values())), False

    def learn(self, rows: Sequence[Any], *, full: bool) -> None:
        """From the rows of claim: where each lane stands now, whose turn is next, what the search cost."""
        first = rows[0]
        for row in rows:
            lane: Lane = (row["priority"], row["queue"], row["tenant"], row["lane"])
            # Back to the end of the dictionary: what is used stays, what is not falls out.
            self._heads.pop(lane, None)
            self._heads[lane] = row["seq"]
        while len(self._heads) > _KNOWN:
            del self._heads[next(iter(self._heads))]
        level: int = rows[-1]["priority"]
        if first["next_queue"] is None:
            self._ring.pop(level, None)
        else:
            self._ring[level] = (first["next_queue"], first["next_tenant"], first["next_lane"])
            if len(self._ring) > _KNOWN:
                del self._ring[next(iter(self._ring))]
        if full and first["wasted"] > _MANY:
            self._full_after = time.monotonic() + _SHARE * first["spent"]

    def forget(self) -> None:
        """Nothing is waiting: every lane begins anew."""
        self._heads.clear()
        self._full_after = 0.0
