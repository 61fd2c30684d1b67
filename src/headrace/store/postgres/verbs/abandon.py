"""ABANDON and RETIRE: a worker died, or left in peace."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.model.lease import WorkerId
from headrace.store.due import AT_ONCE
from headrace.store.postgres.arguments import Text, Time, Uuid, call, text
from headrace.store.postgres.server import Server
from headrace.store.postgres.wakeup import due_hint


class AbandonArgs(NamedTuple):
    """See `sql/abandon.sql`."""

    p_worker: Uuid
    p_cause: Text
    p_now: Time | None


_ABANDON: Final = call("abandon", AbandonArgs)
_RETIRE: Final = (
    "with gone as (delete from headrace.upkeep where worker = $1) delete from headrace.worker where id = $1"
)


async def abandon(server: Server, worker: WorkerId, cause: str) -> int:
    answer = await server.pool.repeatable(
        lambda: server.pool.rows(_ABANDON, *AbandonArgs(worker, text(cause), server.injected), write=True)
    )
    count: int = answer[0][0]
    if count:
        server.bell.ring((due_hint(AT_ONCE),))
    return count


async def retire(server: Server, worker: WorkerId) -> None:
    await server.pool.repeatable(lambda: server.pool.rows(_RETIRE, worker, write=True))
