"""FIND: jobs by filter, newest id first, in keyset pages."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from headrace.model.job import JobId, JobState, job_id, split_id
from headrace.model.records import Filter, Page
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Int4, Text, Texts, Time, Uuid, expression, text
from headrace.store.postgres.server import Server


class FindArgs(NamedTuple):
    """See `sql/find.sql`."""

    p_states: Texts | None
    p_queue: Text | None
    p_task: Text | None
    p_tenant: Text | None
    p_since: Time | None
    p_until: Time | None
    p_text: Text | None
    b_batch: Uuid
    b_ord: Int4
    p_limit: Int4


_FIND: Final = f"""
select u.shown, u.batch as at_batch, u.ord as at_ord, n.*
from {expression("find_page", FindArgs)} u
left join headrace.job_now n on u.shown and n.batch = u.batch and n.ord = u.ord
order by u.shown desc, u.batch desc, u.ord desc"""
_AFTER_ALL: Final = (UUID(int=2**128 - 1), 0)
"""Greater than the place of any job."""


async def find(server: Server, where: Filter, before: JobId | None, limit: int) -> Page:
    batch, ord = split_id(before) if before is not None else _AFTER_ALL
    args = FindArgs(
        p_states=sorted(where.states) if where.states and len(where.states) < len(JobState) else None,
        p_queue=where.queue,
        p_task=where.task,
        p_tenant=where.tenant,
        p_since=where.since,
        p_until=where.until,
        p_text=None if where.text is None else text(where.text),
        b_batch=batch,
        b_ord=ord,
        # One more than the page has tells whether there is another page.
        p_limit=limit + 1,
    )
    scanned = await server.pool.rows(_FIND, *args, write=False, timeout=60)
    shown = [row for row in scanned if row["shown"]]
    expire = any(row["result_until"] is not None for row in shown)
    now = await server.now() if expire else rows.NEVER
    jobs = [rows.job(row, now) for row in shown[:limit]]
    if len(shown) < len(scanned):
        # The store has read as many jobs as one call may. The caller goes on from there.
        return Page(jobs, job_id(scanned[-1]["at_batch"], scanned[-1]["at_ord"]))
    return Page(jobs, jobs[-1].id if jobs and len(shown) > limit else None)
