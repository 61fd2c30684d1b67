"""HISTORY: rollups are added, read in pages, and folded into fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headrace.model.rollup import AttemptEnd, HistoryPage, Rollup, RollupKey
from headrace.store.postgres.arguments import Byteses, Int2s, Int4s, Int8s, Texts, Uuids, call, text
from headrace.store.postgres.server import Server


class AddHistoryArgs(NamedTuple):
    """See `sql/history.sql`."""

    p_start: Int4s
    p_id: Uuids
    p_span: Int2s
    p_queue: Texts
    p_task: Texts
    p_ending: Texts
    p_count: Int8s
    p_wait: Byteses
    p_run: Byteses
    p_sent: Int8s


class FoldHistoryArgs(NamedTuple):
    """See `sql/history.sql`."""

    g_start: Int4s
    g_id: Uuids
    p_start: Int4s
    p_id: Uuids
    p_span: Int2s
    p_queue: Texts
    p_task: Texts
    p_ending: Texts
    p_count: Int8s
    p_wait: Byteses
    p_run: Byteses
    p_sent: Int8s


_ADD: Final = call("add_history", AddHistoryArgs)
_FOLD: Final = call("fold_history", FoldHistoryArgs)
_FIRST: Final = UUID(int=0)
"""Before the id of every rollup."""
_READ: Final = """
select coalesce((select folds from headrace.history_fold), 0) as folds, h.*,
    ($5::text is null or h.queue = $5) and ($6::text is null or h.task = $6) as fits
from (select) as one left join lateral (
    select * from headrace.history where (start, id) > ($1::int4, $2::uuid) and start < $3::int4 order by start, id limit $4
) h on true order by h.start, h.id
"""


async def add_history(server: Server, rollups: Sequence[Rollup]) -> None:
    await server.pool.rows(_ADD, *_columns(rollups), write=True)


async def read_history(
    server: Server, since: int, until: int, queue: str | None, task: str | None, after: RollupKey | None, limit: int
) -> HistoryPage:
    start, id = (since, _FIRST) if after is None else (max(after.start, since), after.id)
    rows = await server.pool.rows(_READ, start, id, until, limit + 1, queue, task, write=False)
    folds: int = rows[0]["folds"]
    rows = [row for row in rows if row["id"] is not None]
    last = RollupKey(rows[limit - 1]["start"], rows[limit - 1]["id"]) if len(rows) > limit else None
    rollups = [
        Rollup(
            start=row["start"],
            id=row["id"],
            span=row["span"],
            queue=row["queue"],
            task=row["task"],
            end=AttemptEnd(row["ending"]),
            count=row["count"],
            wait=row["wait"],
            run=row["run"],
            sent=row["sent"],
        )
        for row in rows[:limit]
        if row["fits"]
    ]
    return HistoryPage(rollups, last, folds)


async def fold_history(server: Server, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
    arguments = ([key.start for key in gone], [key.id for key in gone], *_columns(rollups))
    answer = await server.pool.rows(_FOLD, *arguments, write=True)
    folded: bool = answer[0][0]
    return folded


def _columns(rollups: Sequence[Rollup]) -> AddHistoryArgs:
    return AddHistoryArgs(
        p_start=[rollup.start for rollup in rollups],
        p_id=[rollup.id for rollup in rollups],
        p_span=[rollup.span for rollup in rollups],
        p_queue=[text(rollup.queue) for rollup in rollups],
        p_task=[text(rollup.task) for rollup in rollups],
        p_ending=[str(rollup.end) for rollup in rollups],
        p_count=[rollup.count for rollup in rollups],
        p_wait=[rollup.wait for rollup in rollups],
        p_run=[rollup.run for rollup in rollups],
        p_sent=[rollup.sent for rollup in rollups],
    )
