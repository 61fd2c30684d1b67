"""PROMOTE: jobs that are due become ready; what follows from gates is done; the counts of queues are added up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, NamedTuple

from headrace.model.records import Promoted
from headrace.store.postgres.arguments import Int4, Time, call
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.follow import Follow


class PromoteArgs(NamedTuple):
    """See `sql/promote.sql`."""

    p_limit: Int4
    p_now: Time | None


_PROMOTE: Final = call(
    "promote",
    PromoteArgs,
    "moved, queues, next_due, expired,"
    " (select greatest(l.until - coalesce($2::timestamptz, clock_timestamp()), interval '0')"
    " from headrace.lease l order by l.until limit 1),"
    " case when $3::bool then exists (select from headrace.tally) end,"
    " exists (select from headrace.toll)",
)
"""The third argument: whether to look for counts to add up. A journal with many dead rows makes that slow."""
_FOLD_EVERY: Final = 3.0
"""Seconds."""
_AGAIN: Final = timedelta(seconds=0.25)
"""When to look again for what waits and was locked."""
_FOLD: Final = "select * from headrace.fold()"


class Promotion:
    """The promotions of one store object. It remembers when to add up the counts next."""

    def __init__(self, server: Server, follow: Follow) -> None:
        self._server = server
        self._follow = follow
        self._fold_after = 0.0

    async def promote(self, limit: int) -> Promoted:
        server, loop = self._server, asyncio.get_running_loop()
        begun = loop.time()
        args = (*PromoteArgs(limit, server.injected), begun >= self._fold_after)
        server.bell.due.asking()
        answer = await server.pool.repeatable(lambda: server.pool.rows(_PROMOTE, *args, write=True))
        moved, queues, next_due, expired, next_expiry, counts, tolls = answer[0]
        if tolls or self._follow.under_way:
            followed = await self._follow.all()
            moved += followed.moved
            if followed.busy:
                next_due = _AGAIN if next_due is None else min(next_due, _AGAIN)
        promoted = Promoted(moved, next_due, expired, next_expiry)
        server.bell.due.answered(promoted.next)
        if queues:
            server.bell.ring(queues)
        if counts is not None:
            # Adding up takes at most a twentieth of the time, because an old snapshot fills the journal with dead rows.
            if counts:
                await server.pool.repeatable(lambda: server.pool.rows(_FOLD, write=True))
            self._fold_after = loop.time() + max(_FOLD_EVERY, 20 * (loop.time() - begun))
        return promoted
