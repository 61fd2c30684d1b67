"""REPEAT HINTS: wake workers for jobs whose hint may have been lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.store.postgres.server import Server


def has_ready(queue: str) -> str:
    """The condition that the queue of this expression has something to claim, if its limits allow it."""
    return f"exists (select from headrace.ready r where r.queue = {queue})"


_READY: Final = f"select name from unnest($1::text[]) name where {has_ready('name')}"


async def repeat_hints(server: Server, queues: Sequence[str]) -> None:
    rows = await server.pool.rows(_READY, list(queues), write=False)
    server.bell.ring(name for (name,) in rows)
