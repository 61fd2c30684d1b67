"""DELETE: the store forgets jobs that are not running and in a state that the call names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from headrace.model.job import JobId, JobState
from headrace.store.postgres.arguments import Texts, Uuids, call
from headrace.store.postgres.pool import LONG
from headrace.store.postgres.server import Server


class DeleteArgs(NamedTuple):
    """See `sql/delete.sql`."""

    p_ids: Uuids
    p_states: Texts | None


_DELETE: Final = call("delete", DeleteArgs)


async def delete(server: Server, ids: Sequence[JobId], states: Collection[JobState] | None) -> frozenset[JobId]:
    args = DeleteArgs(list(ids), None if states is None else [str(state) for state in states])
    rows = await server.pool.rows(_DELETE, *args, write=True, timeout=LONG)
    return frozenset(JobId(row["id"]) for row in rows)
