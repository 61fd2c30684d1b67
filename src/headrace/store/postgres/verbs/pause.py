"""PAUSE and RESUME queues, tenants and tasks; PAUSES: what is paused now."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from headrace.model.records import Pause, PauseKind
from headrace.store.postgres.arguments import Text, Time, call, text
from headrace.store.postgres.server import Server


class PauseArgs(NamedTuple):
    """See `sql/pause.sql`."""

    p_kind: Text
    p_name: Text
    p_by: Text
    p_until: Time | None
    p_now: Time | None


_PAUSE: Final = call("pause", PauseArgs)
_RESUME: Final = "delete from headrace.pause where kind = $1 and name = $2"
_PAUSES: Final = (
    "select kind, name, by, since, until from headrace.pause"
    " where until is null or until > coalesce($1, clock_timestamp()) order by kind, name"
)


async def pause(server: Server, kind: PauseKind, name: str, by: str, until: datetime | None) -> None:
    args = PauseArgs(kind, name, text(by), until, server.injected)
    await server.pool.repeatable(lambda: server.pool.rows(_PAUSE, *args, write=True))


async def resume(server: Server, kind: PauseKind, name: str) -> None:
    await server.pool.repeatable(lambda: server.pool.rows(_RESUME, kind, name, write=True))
    if kind == "queue":
        server.bell.ring((name,))
    elif kind == "tenant":
        server.bell.ring_all()


async def pauses(server: Server) -> list[Pause]:
    return [Pause(*row) for row in await server.pool.rows(_PAUSES, server.injected, write=False)]
