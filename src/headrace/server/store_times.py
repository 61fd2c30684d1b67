"""The wait and run times of all jobs of a store, added up from history for `/metrics`."""

from __future__ import annotations

from typing import Final

from headrace.errors import Unsupported
from headrace.model.histogram import Histogram
from headrace.model.rollup import AttemptEnd, Rollup, RollupKey
from headrace.store.contract import Store
from headrace.worker.attempt_times import AttemptTimes

LATE: Final = 30.0
"""Seconds after the end of a minute at which it is read. Workers write history every ten seconds."""
BEHIND: Final = 60
"""Minutes that are read at once, at most. If no client has read the metrics for longer, the times of older minutes are left out."""
_TRIES: Final = 3
"""How often the pages are read, until no fold comes between two of them."""


class StoreTimes:
    """Adds each minute of history once, so that the counts only grow. They begin with the first read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._times = AttemptTimes()
        self._next: int | None = None
        """The first minute that is not added yet."""

    async def read(self) -> AttemptTimes:
        """All attempts since the first read that ended in a minute which is over."""
        end = int(((await self._store.now()).timestamp() - LATE) // 60)
        first = end if self._next is None else max(self._next, end - BEHIND)
        if first < end:
            for rollup in await self._rollups(first, end):
                self._add(rollup)
        self._next = max(first, end)
        return self._times

    async def _rollups(self, first: int, end: int) -> list[Rollup]:
        """All rollups of these minutes. A fold between two pages may hide some, so that the reading begins again."""
        rollups: list[Rollup] = []
        for _ in range(_TRIES):
            rollups.clear()
            after: RollupKey | None = None
            folds: int | None = None
            while True:
                try:
                    page = await self._store.read_history(first, end, after=after)
                except Unsupported:
                    return []  # This server may not read history, for example of a remote store.
                if folds is not None and folds != page.folds:
                    break
                rollups += page.rollups
                folds, after = page.folds, page.next
                if after is None:
                    return rollups
        return rollups

    def _add(self, rollup: Rollup) -> None:
        try:
            wait, run = Histogram.unpack(rollup.wait), Histogram.unpack(rollup.run)
        except ValueError:
            return  # Only a newer version can read its times.
        self._times.add(rollup.queue, rollup.task, wait, run, rollup.count if rollup.end is AttemptEnd.DONE else None)
