"""PROMOTE: jobs that are due become ready; the counts of queues are added up."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from headrace.model.records import Promoted
from headrace.store.postgres.arguments import Int4, Time, call
from headrace.store.postgres.server import Server


class PromoteArgs(NamedTuple):
    """See `sql/promote.sql`."""

    p_limit: Int4
    p_now: Time | None


_PROMOTE: Final = call("promote", PromoteArgs)
_FOLD_EVERY: Final = 3.0
"""Seconds."""
_FOLD: Final = "select * from headrace.fold()"


class Promotion:
    """The promotions of one store object. It remembers when to add up the counts next."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._fold_after = 0.0

    async def promote(self, limit: int) -> Promoted:
        server = self._server
        found = await server.pool.repeatable(
            lambda: server.pool.rows(_PROMOTE, *PromoteArgs(limit, server.injected), write=True)
        )
        moved, queues, next_due, expired = found[0]
        if queues:
            server.bell.ring(queues)
        await self._fold()
        return Promoted(moved, next_due, expired)

    async def _fold(self) -> None:
        """Add the journal up now and then, for at most a twentieth of the time: an old snapshot fills it with dead rows."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if begun < self._fold_after:
            return
        pool = self._server.pool
        await pool.repeatable(lambda: pool.rows(_FOLD, write=True))
        self._fold_after = loop.time() + max(_FOLD_EVERY, 20 * (loop.time() - begun))
