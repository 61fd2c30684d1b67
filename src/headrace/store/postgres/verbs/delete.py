"""DELETE: the store forgets jobs that are not running and in a state that the call names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from headrace.model.job import JobId, JobState
from headrace.store.postgres.arguments import Texts, Time, Uuids, call
from headrace.store.postgres.pool import LONG
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.follow import Follow


class DeleteArgs(NamedTuple):
    """See `sql/delete.sql`."""

    p_ids: Uuids
    p_states: Texts | None
    p_ended_by: Time | None


_DELETE: Final = call("delete", DeleteArgs)


async def delete(
    server: Server,
    follow: Follow,
    ids: Sequence[JobId],
    states: Collection[JobState] | None,
    ended_by: datetime | None,
) -> frozenset[JobId]:
    args = DeleteArgs(list(ids), None if states is None else [str(state) for state in states], ended_by)
    rows = await server.pool.rows(_DELETE, *args, write=True, timeout=LONG)
    if rows:
        follow.all_soon()
    return frozenset(JobId(row["id"]) for row in rows)
