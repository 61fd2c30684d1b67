"""REAP: expired leases change hands under fresh tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, NamedTuple

from headrace.model.lease import Orphan, Token, WorkerId
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Int4, Interval, Time, Uuid, call
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.claim import held_by


class ReapArgs(NamedTuple):
    """See `sql/reap.sql`."""

    p_worker: Uuid
    p_ttl: Interval
    p_limit: Int4
    p_now: Time | None


_REAP: Final = call("reap", ReapArgs)


async def reap(server: Server, worker: WorkerId, ttl: timedelta, limit: int) -> list[Orphan]:
    args = ReapArgs(worker, ttl, limit, server.injected)
    reaped = await server.pool.repeatable(lambda: server.pool.rows(_REAP, *args, write=True))
    return [await _orphan(server, row) for row in reaped]


async def _orphan(server: Server, reaped: Any) -> Orphan:
    token = Token(reaped["token"])
    jobs = rows.held(await held_by(server, token))
    return Orphan(token, jobs, reaped["suspect"], WorkerId(reaped["worker"]), reaped["cause"])
