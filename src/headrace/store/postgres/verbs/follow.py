"""FOLLOW: what follows from counts on gates: jobs are released or cancelled, and other gates are told.

A settlement leaves a toll for each gate. The store object that settled adds the tolls of a gate up at once, unless it has just done
so: then once, a moment later, for all settlements until then. What no store object has followed, `promote` does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import HeadraceError
from headrace.model.gate import Needs, why_cancelled
from headrace.runtime import faults
from headrace.store.due import AT_ONCE
from headrace.store.postgres.arguments import Int4, Interval, Texts, Time, Uuids, call
from headrace.store.postgres.server import Server
from headrace.store.postgres.wakeup import due_hint


class FollowArgs(NamedTuple):
    """See `sql/follow.sql`."""

    p_ids: Uuids | None
    p_limit: Int4
    p_notes: Texts
    p_now: Time | None
    p_gap: Interval | None


_FOLLOW: Final = call("follow", FollowArgs)
_RUNS: Final = 10_000
"""Runs of jobs that one statement releases, or jobs that it cancels."""
NOTES: Final = [why_cancelled(needs, UUID(int=0)) for needs in (Needs.DONE, Needs.FAILED)]
_FIRST: Final = 0.00125
"""Seconds between the first two looks at the same gate. They double with each look, so that a join of a few jobs does not wait."""
_GAP: Final = 0.02
"""Seconds between two looks at a gate on which many settlements count."""
_CALM: Final = 0.2
"""Seconds without a look after which the next one is the first again."""
_RECENT: Final = timedelta(seconds=_GAP * 0.9)
"""A gate that another store object has looked at within this time is left alone for now."""
_SHARE: Final = 20
"""Looks take at most this part of the time, because an old snapshot fills the tolls with dead rows."""
_LONG: Final = 0.05
"""Seconds for a look that is long."""
_TRIES: Final = 64
"""How often a gate is tried that is locked or that another store object looks at. After that it is left to `promote`."""
_REMEMBERED: Final = 10_000
"""Gates whose last look is remembered."""


class Followed(NamedTuple):
    """The answer of one statement."""

    moved: int
    busy: bool
    """Something was locked and is left."""


class Follow:
    """Follows what the calls of one store object have counted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wanted: dict[UUID, int] = {}
        """Gates and jobs to look at, and how often that was tried in vain."""
        self._looked: dict[UUID, tuple[float, float]] = {}
        """When each was looked at last, on the clock of the event loop, and the seconds until the next look."""
        self._gap = _GAP
        self._took = 0.0
        """Seconds of the last look."""
        self._all = False
        self._work: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    def soon(self, ids: Iterable[UUID] | None) -> None:
        """Look at these gates and jobs, each at once or when its gap is over. Never blocks."""
        if ids:
            for id in ids:
                self._wanted.setdefault(id, 0)
            self._start()

    def all_soon(self) -> None:
        """Look at whatever has tolls."""
        self._all = True
        self._start()

    @property
    def under_way(self) -> bool:
        return self._work is not None and not self._work.done()

    async def at_once(self, ids: Sequence[UUID]) -> None:
        """Look at these before the call returns, because the process may end then. What is left follows later."""
        with contextlib.suppress(HeadraceError):
            _, todo, busy = await self._look(ids)
            self.soon((*todo, *busy))
            return
        self.soon(ids)

    async def all(self) -> Followed:
        """A bounded part of what follows from all tolls. A look that is under way is waited for."""
        moved, _, busy = await self._look(None)
        return Followed(moved, bool(busy))

    async def close(self) -> None:
        """End what is under way. `promote` of another store object follows the rest, and a hint says so."""
        work, self._work = self._work, None
        if work is not None and not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            self._server.bell.ring({due_hint(AT_ONCE)})

    def _start(self) -> None:
        if not self.under_way:
            self._work = asyncio.get_running_loop().create_task(self._run(), name="headrace-follow")

    async def _run(self) -> None:
        # What is not followed because of an error is left to `promote`, which reports errors.
        with contextlib.suppress(HeadraceError):
            while self._wanted or self._all:
                await self._round()
            return
        self._wanted.clear()
        self._all = False

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        if self._all:
            self._all = False
            while (await self._look(None))[0]:
                pass
        now = loop.time()
        at = {id: self._next_look(id, tries) for id, tries in self._wanted.items()}
        if not (due := [id for id, time in at.items() if time <= now]):
            await asyncio.sleep(min(at.values(), default=now) - now)
            return
        tries = {id: self._wanted.pop(id) for id in due}
        _, todo, busy = await self._look(due)
        took = loop.time() - now
        self._gap, self._took = gap_after(took, self._took), took
        self._remember(due, loop.time())
        for id in busy:
            if (again := tries.get(id, 0) + 1) < _TRIES:
                self._wanted[id] = again
        for id in todo:
            # The next piece of something large follows without a gap.
            self._wanted.setdefault(id, 0)
            self._looked.pop(id, None)

    def _next_look(self, id: UUID, tries: int) -> float:
        looked, gap = self._looked.get(id, (-1.0, 0.0))
        return looked + gap * (2 if tries else 1)

    def _remember(self, ids: Sequence[UUID], now: float) -> None:
        for id in ids:
            looked, gap = self._looked.pop(id, (-1.0, 0.0))
            # Looks that take long are made rarer at once.
            longer = min(max(_FIRST, 2 * gap), _GAP) if now - looked < _CALM else _FIRST
            self._looked[id] = now, self._gap if self._gap > _GAP else longer
        while len(self._looked) > _REMEMBERED:
            del self._looked[next(iter(self._looked))]

    async def _look(self, ids: Sequence[UUID] | None) -> tuple[int, Sequence[UUID], Sequence[UUID]]:
        server = self._server
        args = FollowArgs(ids, _RUNS, NOTES, server.injected, None if ids is None else _RECENT)
        # Two looks of one store object would only find each other's locks.
        async with self._looking:
            [(moved, queues, todo, busy)] = await server.pool.repeatable(
                lambda: server.pool.rows(_FOLLOW, *args, write=True, timeout=60)
            )
        if faults.ARMED and moved and todo:
            faults.reach("opening")
        if queues:
            server.bell.ring(set(queues))
        return moved, todo or (), busy


def gap_after(took: float, before: float) -> float:
    """Seconds until the next look at a gate on which many settlements count, after two looks that took so long.

    One long look says little: the first one of a connection also plans its statements.
    """
    long = min(took, before)
    return _SHARE * long if long > _LONG else _GAP
