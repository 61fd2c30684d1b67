"""HISTORY: writes what the tally has counted to the store every few seconds, and folds what is there into fewer rollups."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from headrace.errors import HeadraceError, OutcomeUnknown, Unsupported
from headrace.model.rollup import USAGE_FROM, Rollup, RollupKey
from headrace.policy.history import REPEAT_FOR, earliest, plan_fold, plan_usage_fold, ranges_to_drop, ranges_to_fold
from headrace.store.contract import Store
from headrace.worker.service import OutageLog, Service, log
from headrace.worker.slot_meter import SlotMeter
from headrace.worker.state import WorkerState

EVERY: Final = 10.0
"""Seconds between two writes."""
AT_ONCE: Final = 500
"""Rollups of one call."""
MOST_WAITING: Final = 5000
"""Rollups that wait for a store that is away. The oldest ones are dropped first."""
LAST_WORDS: Final = 2.0
"""Seconds that a stopping worker waits for the store to take its last rollups."""
FOLD_EVERY: Final = 60.0
DROP_EVERY: Final = 3600.0
"""Seconds between two passes, and between two looks for rollups past retention."""
EVERYTHING_EVERY: Final = 6 * 3600.0
"""Seconds between two passes that look at all rollups, for those that arrived late."""
STEPS: Final = 20
"""Pages that one call of the upkeep reads at most, so that it does not hold the store for long."""


class _Waiting:
    """A rollup that the store has not confirmed."""

    __slots__ = ("rollup", "unsure")

    def __init__(self, rollup: Rollup) -> None:
        self.rollup = rollup
        self.unsure = False
        """The store may have it."""


class HistoryWriter(Service):
    """Writes the tally. A store that is away neither stops nor slows the worker: it loses history, and nothing else."""

    name = "history"

    def __init__(self, state: WorkerState, *, slots: int = 0) -> None:
        """`slots`: how many jobs the worker runs at the same time; 0: the jobs run elsewhere, so nothing is known of it."""
        super().__init__()
        self._state = state
        self._slots = SlotMeter(state, slots) if slots else None
        self._waiting: deque[_Waiting] = deque()
        self._outage = OutageLog("writing history")
        self._refused = False
        self.dropped = 0
        """Rollups that were given up, ever."""

    async def run(self) -> None:
        while True:
            await self.bell.wait(EVERY * random.uniform(0.9, 1.1))
            await self.flush()

    async def stop(self) -> None:
        await super().stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self.flush(final=True)

    async def flush(self, *, final: bool = False) -> None:
        """Write everything that was counted. What the store does not take waits for the next call."""
        if self._slots is not None:
            self._slots.read(final=final)
        rollups = self._state.tally.take()
        if self._refused:
            return
        self._waiting.extend(map(_Waiting, rollups))
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        while self._waiting:
            some = self._some()
            try:
                if some:
                    adding = self._state.store.add_history([waiting.rollup for waiting in some])
                    await self._state.calls.timed("history", adding)
            except Unsupported as error:
                log.warning("this worker writes no history: %s", error)
                self._refused = True
                self._waiting.clear()
                return
            except HeadraceError as error:
                for waiting in some:
                    waiting.unsure = waiting.unsure or isinstance(error, OutcomeUnknown)
                self._outage.raise_(error)
                return
            except Exception:  # noqa: BLE001  # a store's bug must not end the worker
                log.exception("the store cannot take %d rollups of history: they are dropped", len(some))
                self.dropped += len(some)
            except BaseException:
                for waiting in some:
                    waiting.unsure = True  # The call was cancelled while it was under way.
                raise
            for _ in some:
                self._waiting.popleft()
        self._outage.settle()

    def _some(self) -> list[_Waiting]:
        """The first ones that wait, without those that the store may have and may have folded already."""
        now = self._state.watch.about()
        some: list[_Waiting] = []
        while self._waiting and len(some) < AT_ONCE:
            waiting = self._waiting.popleft()
            if not waiting.unsure:
                waiting.rollup = replace(waiting.rollup, sent=int(now))
            elif now - waiting.rollup.sent > REPEAT_FOR:
                self.dropped += 1
                continue
            some.append(waiting)
        self._waiting.extendleft(reversed(some))
        return some


class HistoryUpkeep:
    """Folds rollups into fewer and drops old ones. Several workers may do it: a fold that comes second is refused."""

    def __init__(self, store: Store, keep: timedelta) -> None:
        self._store = store
        self._keep = keep
        self._now = 0.0
        """The store's clock at the beginning of this call."""
        self._ranges: list[tuple[int, int]] = []
        """Minutes that are still to be read in this pass."""
        self._after: RollupKey | None = None
        self._everything_at = self._drop_at = 0.0
        self._folded = False
        """This pass has folded something."""

    async def tidy(self) -> float:
        """Do a bounded amount of work. Returns the seconds until the next call."""
        self._now = (await self._store.now()).timestamp()
        if not self._ranges:
            self._begin()
        for _ in range(STEPS):
            if self._now >= self._drop_at:
                await self._drop_page()
            elif not await self._fold_page():
                # Where no jobs run, there is nothing to fold for long.
                return FOLD_EVERY * random.uniform(0.8, 1.2) * (1 if self._folded else 3)
        return 0.1

    def _begin(self) -> None:
        everything = self._now >= self._everything_at
        if everything:
            self._everything_at = self._now + EVERYTHING_EVERY
        self._ranges, self._after = list(ranges_to_fold(self._now, everything=everything)), None
        self._folded = False

    async def _drop_page(self) -> None:
        """Drop rollups past retention."""
        for since, until in ranges_to_drop(self._now, self._keep):
            page = await self._store.read_history(since, until)
            if page.rollups:
                await self._store.fold_history([rollup.key for rollup in page.rollups], [])
                return
        self._drop_at = self._now + DROP_EVERY

    async def _fold_page(self) -> bool:
        """Read a page and fold it. False: this pass is over."""
        since, until = self._ranges[0]
        page = await self._store.read_history(since, until, after=self._after)
        fold = (plan_usage_fold if since >= USAGE_FROM else plan_fold)(page.rollups, self._now)
        if fold is not None:
            # Whether this fold or that of another worker came first: what is there now begins at the same place.
            await self._store.fold_history(fold.gone, fold.rollups)
            self._ranges[0], self._after = (earliest(fold.rollups), until), None
            self._folded = True
        elif page.next is not None:
            self._after = page.next
        else:
            self._ranges.pop(0)
            self._after = None
        return bool(self._ranges)
