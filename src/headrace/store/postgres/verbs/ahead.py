"""AHEAD: what a waiting job waits behind."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.model.job import JobId
from headrace.model.lane import Ahead
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Int4, Time, Uuid, call
from headrace.store.postgres.server import Server


class AheadArgs(NamedTuple):
    """See `sql/ahead.sql`."""

    p_id: Uuid
    p_limit: Int4
    p_now: Time | None


class BlockedArgs(NamedTuple):
    """See `sql/ahead.sql`."""

    p_id: Uuid
    p_now: Time | None


_AHEAD: Final = call("ahead", AheadArgs)
_BLOCKED: Final = call("blocked", BlockedArgs)


async def ahead(server: Server, id: JobId, limit: int) -> Ahead | None:
    now = server.injected
    answer = await server.pool.rows(_AHEAD, *AheadArgs(id, limit, now), write=False)
    if not answer:
        return None
    limited = answer[0]["limited"]
    blocked = await server.pool.rows(_BLOCKED, *BlockedArgs(id, now), write=False) if limited else ()
    return rows.ahead(answer[0], limit, blocked)
