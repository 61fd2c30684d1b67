"""Combines pages of `find`. A page may be short before the end, so only `next` shows whether there is more."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import Job, JobId
from headrace.model.records import Filter, Page
from headrace.store.contract import Store


async def fill(
    store: Store, where: Filter, *, before: JobId | None = None, limit: int = 50, calls: int | None = None
) -> Page:
    """A page of `limit` jobs, or of all that are left. `calls`: the most calls of the store."""
    jobs: list[Job] = []
    while True:
        page = await store.find(where, before=before, limit=limit - len(jobs))
        jobs += page.jobs
        before = page.next
        calls = None if calls is None else calls - 1
        if before is None or len(jobs) >= limit or calls == 0:
            return Page(jobs, before)


def merge(pages: Sequence[Page], limit: int) -> Page:
    """One page from several that begin at the same id, each with another part of the jobs."""
    jobs = sorted((job for page in pages for job in page.jobs), key=lambda job: job.id.int, reverse=True)
    # A part that stopped early may have more below its `next`, so the page ends where the first part stopped.
    stopped = max((page.next for page in pages if page.next is not None), default=None, key=lambda at: at.int)
    known = jobs if stopped is None else [job for job in jobs if job.id.int >= stopped.int]
    if len(known) > limit:
        return Page(known[:limit], known[limit - 1].id)
    return Page(known, stopped)
