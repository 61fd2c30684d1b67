"""STATS and WORKERS: every queue in figures, and the workers of the last minute."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from msgspec.structs import replace

from headrace.model.lane import MAX_LANES
from headrace.model.lease import Presence
from headrace.model.records import QueueStats, Stats
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Int2, Int4, Int8, Text, Texts, Time, call
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.lanes import Spot


class FiguresArgs(NamedTuple):
    """See `sql/stats.sql`."""

    p_after: Text
    p_limit: Int4
    p_now: Time | None


class OldestArgs(NamedTuple):
    """See `sql/stats.sql`."""

    p_queues: Texts
    p_lanes: Int4
    a_priority: Int2 | None = None
    a_tenant: Text | None = None
    a_lane: Int8 | None = None


_FIGURES: Final = call("figures", FiguresArgs)
_OLDEST: Final = call("oldest", OldestArgs)
_WORKERS: Final = (
    "select * from headrace.worker where seen_at > coalesce($1, clock_timestamp()) - interval '1 minute'"
    " order by name, id"
)
_QUEUES: Final = 1000
"""Queues that one statement reads the figures of."""
_HEADS: Final = 200
"""Lanes that one statement looks at for the oldest job."""
_FEW: Final = 2
"""Lanes of each queue that the first statements look at."""


async def stats(server: Server) -> Stats:
    queues: list[QueueStats] = []
    while True:
        args = FiguresArgs(queues[-1].queue if queues else "", _QUEUES, server.injected)
        page = await server.pool.rows(_FIGURES, *args, write=False)
        queues += [rows.figures(row) for row in page]
        if len(page) < _QUEUES:
            return Stats(await _with_ages(server, queues))


async def _with_ages(server: Server, queues: list[QueueStats]) -> list[QueueStats]:
    """Look for the oldest jobs: at few lanes of many queues in a statement, then at more lanes of those that have them."""
    waiting = [queue.queue for queue in queues if queue.ready > 0]
    if not waiting:
        return queues
    now = await server.now()
    oldest: dict[str, datetime] = {}
    looked: dict[str, int] = {}
    further: dict[str, Spot] = {}

    async def look(args: OldestArgs) -> None:
        for row in await server.pool.rows(_OLDEST, *args, write=False):
            queue = row["queue"]
            oldest[queue] = min(oldest.get(queue, row["enqueued_at"]), row["enqueued_at"])
            looked[queue] = looked.get(queue, 0) + row["lanes"]
            if row["lanes"] == args.p_lanes:
                further[queue] = row["priority"], row["tenant"], row["lane"]

    for begin in range(0, len(waiting), _HEADS // _FEW):
        await look(OldestArgs(waiting[begin : begin + _HEADS // _FEW], _FEW))
    many: set[str] = set()
    while further:
        queue, (priority, tenant, lane) = further.popitem()
        if looked[queue] > MAX_LANES:
            many.add(queue)
        else:
            await look(OldestArgs([queue], _HEADS, a_priority=priority, a_tenant=tenant, a_lane=lane))
    return [
        replace(queue, oldest_ready=now - oldest[queue.queue], oldest_at_least=queue.queue in many)
        if queue.queue in oldest
        else queue
        for queue in queues
    ]


async def workers(server: Server) -> list[Presence]:
    return [rows.presence(row) for row in await server.pool.rows(_WORKERS, server.injected, write=False)]
