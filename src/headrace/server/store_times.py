"""The wait and run times of all jobs of a store, added up from history for `/metrics`."""

from __future__ import annotations

from typing import Final

from headrace.errors import Unsupported
from headrace.model.histogram import Histogram
from headrace.model.rollup import MINUTE, AttemptEnd, Rollup
from headrace.operate.rollups import read_rollups
from headrace.policy.history import counts_in, pieces, ranges_to_read
from headrace.store.contract import Store
from headrace.worker.attempt_times import AttemptTimes

LATE: Final = 30.0
"""Seconds after the end of a minute at which it is read. Workers write history every ten seconds."""
BEHIND: Final = 60
"""Minutes that are read at once, at most. If no client has read the metrics for longer, the times of older minutes are left out."""


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
        """All rollups of these minutes. Minutes that are folded already are read from the details."""
        rollups: list[Rollup] = []
        parts = pieces(first, end, MINUTE)

        def take(rollup: Rollup) -> None:
            if counts_in(rollup, parts):
                rollups.append(rollup)

        try:
            await read_rollups(self._store, list(ranges_to_read(parts, end)), take, restart=rollups.clear)
        except Unsupported:
            return []  # This server may not read history, for example of a remote store.
        return rollups

    def _add(self, rollup: Rollup) -> None:
        try:
            wait, run = Histogram.unpack(rollup.wait), Histogram.unpack(rollup.run)
        except ValueError:
            return  # Only a newer version can read its times.
        self._times.add(rollup.queue, rollup.task, wait, run, rollup.count if rollup.end is AttemptEnd.DONE else None)
