"""REPEAT HINTS: wake workers for jobs whose hint may have been lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.store.postgres.server import Server

_READY: Final = (
    "select name from unnest($1::text[]) name where exists (select from headrace.ready r where r.queue = name)"
)


async def repeat_hints(server: Server, queues: Sequence[str]) -> None:
    rows = await server.pool.rows(_READY, list(queues), write=False)
    server.bell.ring(name for (name,) in rows)
