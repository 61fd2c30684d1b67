"""CANCEL: waiting jobs end at once, running ones are asked to stop, finished ones stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.model.job import JobId
from headrace.model.records import CancelAnswer
from headrace.store.postgres.arguments import Text, Time, Uuids, call, text
from headrace.store.postgres.pool import LONG
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.follow import Follow


class CancelArgs(NamedTuple):
    """See `sql/cancel.sql`."""

    p_ids: Uuids
    p_reason: Text | None
    p_now: Time | None


_CANCEL: Final = call("cancel", CancelArgs)


async def cancel(server: Server, follow: Follow, ids: Sequence[JobId], reason: str | None) -> dict[JobId, CancelAnswer]:
    args = CancelArgs(list(ids), None if reason is None else text(reason), server.injected)
    rows = await server.pool.rows(_CANCEL, *args, write=True, timeout=LONG)
    if rows:
        follow.all_soon()
    answers = {row["id"]: CancelAnswer(row["answer"]) for row in rows}
    return {id: answers[id] for id in dict.fromkeys(ids)}
