"""RETRY: an operator makes finished or scheduled jobs ready now, with a clean slate; or scheduled ones as if they were due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.model.job import JobId
from headrace.store.postgres.arguments import Bool, Uuids, call
from headrace.store.postgres.pool import LONG
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.follow import Follow


class RetryArgs(NamedTuple):
    """See `sql/retry.sql`."""

    p_ids: Uuids
    p_afresh: Bool


_RETRY: Final = call("retry", RetryArgs)


async def retry(server: Server, follow: Follow, ids: Sequence[JobId], *, afresh: bool) -> frozenset[JobId]:
    rows = await server.pool.rows(_RETRY, *RetryArgs(list(ids), afresh), write=True, timeout=LONG)
    if rows:
        follow.all_soon()
    server.bell.ring({row["queue"] for row in rows})
    return frozenset(JobId(row["id"]) for row in rows)
