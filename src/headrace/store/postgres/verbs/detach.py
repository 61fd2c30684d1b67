"""DETACH: one job of a lease gets a lease of its own."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.model.lease import Token
from headrace.store.postgres.arguments import Int4, Uuid, call
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.server import Server


class DetachArgs(NamedTuple):
    """See `sql/detach.sql`."""

    p_token: Uuid
    p_position: Int4
    p_fresh: Uuid


_DETACH: Final = call("detach", DetachArgs)


async def detach(server: Server, leases: LeaseMemory, token: Token, position: int, fresh: Token) -> bool:
    answer = await server.pool.repeatable(
        lambda: server.pool.rows(_DETACH, *DetachArgs(token, position, fresh), write=True)
    )
    detached: bool = answer[0][0]
    if detached:
        leases.detach(token, fresh)
    return detached
