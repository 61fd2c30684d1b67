"""HISTORY: rollups are added, read in pages, and folded into fewer."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from headrace.model.rollup import AttemptEnd, HistoryPage, Rollup, RollupKey
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import Bulk, text

_SQL = load("history")
_ADD = Bulk(_SQL["add"], blobs=True)


def add_history(tx: Tx, rollups: Sequence[Rollup]) -> None:
    _ADD.insert(
        tx.cur,
        [
            (
                rollup.start,
                rollup.id.bytes,
                rollup.span,
                text(rollup.queue),
                text(rollup.task),
                str(rollup.end),
                rollup.count,
                rollup.wait,
                rollup.run,
                rollup.sent,
            )
            for rollup in rollups
        ],
    )


def read_history(
    tx: Tx, since: int, until: int, queue: str | None, task: str | None, after: RollupKey | None, limit: int
) -> HistoryPage:
    start, id = (since, b"") if after is None else (max(after.start, since), after.id.bytes)
    arguments = {"start": start, "id": id, "until": until, "queue": queue, "task": task, "limit": limit + 1}
    rows = tx.cur.execute(_SQL["read"], arguments).fetchall()
    folds = tx.cur.execute(_SQL["folds"]).fetchone()
    more = len(rows) > limit
    rollups = [
        Rollup(
            start=start,
            id=UUID(bytes=id),
            span=span,
            queue=queue,
            task=task,
            end=AttemptEnd(ending),
            count=count,
            wait=wait,
            run=run,
            sent=sent,
        )
        for start, id, fits, span, queue, task, ending, count, wait, run, sent in rows[:limit]
        if fits
    ]
    last = RollupKey(rows[limit - 1][0], UUID(bytes=rows[limit - 1][1])) if more else None
    return HistoryPage(rollups, last, 0 if folds is None else folds[0])


def fold_history(tx: Tx, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
    tx.cur.execute("savepoint headrace_fold")
    for start, id in gone:
        if not tx.cur.execute(_SQL["gone"], (start, id.bytes)).rowcount:
            tx.cur.execute("rollback to headrace_fold")
            tx.cur.execute("release headrace_fold")
            return False
    tx.cur.execute("release headrace_fold")
    add_history(tx, rollups)
    tx.cur.execute(_SQL["folded"])
    return True
