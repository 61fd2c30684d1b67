"""REPORT: what running tasks say of their jobs, under their lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headrace.model.lease import MAX_LOG, Report, Token
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Floats, Int4, Int4s, Texts, Times, Uuid, call, text
from headrace.store.postgres.server import Server


class ReportArgs(NamedTuple):
    """See `sql/report.sql`."""

    p_token: Uuid
    p_positions: Int4s
    p_progress: Floats
    p_notes: Texts
    l_index: Int4s
    l_at: Times
    l_text: Texts
    p_keep: Int4


_REPORT: Final = call("report", ReportArgs)


async def report(server: Server, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
    if not reports:
        return frozenset()
    # Not repeated when the answer is lost: the log would hold the same lines twice.
    answer = await server.pool.rows(_REPORT, *_report_args(token, reports), write=True)
    return rows.refused(reports, answer[0][0])


def _report_args(token: UUID, reports: Sequence[tuple[int, Report]]) -> ReportArgs:
    """Several reports of one position become one."""
    merged: dict[int, Report] = {}
    for position, new in reports:
        old = merged.get(position, Report())
        merged[position] = Report(
            progress=old.progress if new.progress is None else new.progress,
            note=old.note if new.note is None else text(new.note),
            lines=(*old.lines, *new.lines)[-MAX_LOG:],
        )
    lines = [(index, line) for index, one in enumerate(merged.values(), start=1) for line in one.lines]
    return ReportArgs(
        p_token=token,
        p_positions=list(merged),
        p_progress=[one.progress for one in merged.values()],
        p_notes=[one.note for one in merged.values()],
        l_index=[index for index, _ in lines],
        l_at=[line.at for _, line in lines],
        l_text=[text(line.text) for _, line in lines],
        p_keep=MAX_LOG,
    )
