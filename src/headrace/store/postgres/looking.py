"""The verbs that look and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from headrace.clock import Clock
from headrace.job import Job, JobId, JobState, job_id, split_id
from headrace.lane import Ahead, LaneView
from headrace.lease import Presence
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import text
from headrace.store.postgres.base import Base, call
from headrace.store.postgres.pool import transaction
from headrace.store.terms import Ending, Filter, Page, Stats

_JOB_NOW: Final = """
select n.* from unnest($1::uuid[], $2::int4[]) with ordinality u(batch, ord, o)
join headrace.job_now n on n.batch = u.batch and n.ord = u.ord order by u.o"""
_FAILURES: Final = """
select f.* from unnest($1::uuid[], $2::int4[]) u(batch, ord)
join headrace.failure f on f.batch = u.batch and f.ord = u.ord order by f.attempt, f.at"""
_REPORTS: Final = """
select r.* from unnest($1::uuid[], $2::int4[]) u(batch, ord)
join headrace.report r on r.batch = u.batch and r.ord = u.ord"""
_FIND: Final = """
select u.shown, u.batch as at_batch, u.ord as at_ord, n.*
from headrace.find_page($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) u
left join headrace.job_now n on u.shown and n.batch = u.batch and n.ord = u.ord
order by u.shown desc, u.batch desc, u.ord desc"""


_AFTER_ALL: Final = (UUID(int=2**128 - 1), 0)
"""Greater than any job's place."""


class Looking(Base):
    """See contract.Store."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock=clock)
        # Where the last look at a queue's lanes ended.
        self._looked: dict[str, tuple[int, str, int]] = {}

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        places = [split_id(id) for id in ids]
        batches, ords = [batch for batch, _ in places], [ord for _, ord in places]

        async def look(connection: Any) -> tuple[list[Any], list[Any], list[Any], datetime]:
            # One snapshot: a job that moves meanwhile is seen in one place.
            async with transaction(connection, "begin isolation level repeatable read, read only"):
                return (
                    await connection.fetch(_JOB_NOW, batches, ords),
                    await connection.fetch(_FAILURES, batches, ords),
                    await connection.fetch(_REPORTS, batches, ords),
                    await connection.fetchval("select clock_timestamp()"),
                )

        found, failed, reported, now = await self._pool.run(look, write=False)
        said = {(row["batch"], row["ord"]): row for row in reported}
        history: dict[tuple[Any, int], list[Any]] = {}
        for row in failed:
            history.setdefault((row["batch"], row["ord"]), []).append(row)
        jobs: dict[tuple[Any, int], Job] = {}
        for row in found:
            place = (row["batch"], row["ord"])
            failures = tuple(rows.failure(f) for f in history.get(place, ()))
            jobs[place] = rows.job(row, self._now() or now, failures, said.get(place), whole=True)
        return [jobs.get(place) for place in places]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        batch, ord = split_id(before) if before is not None else _AFTER_ALL
        states = sorted(where.states) if where.states and len(where.states) < len(JobState) else None
        fields = (where.queue, where.task, where.tenant, where.since, where.until)
        sought = None if where.text is None else text(where.text)
        found = await self._pool.rows(_FIND, states, *fields, sought, batch, ord, limit + 1, write=False, timeout=60)
        shown = [row for row in found if row["shown"]]
        now = (
            await self.now()
            if any(row["result_until"] is not None for row in shown)
            else datetime.max.replace(tzinfo=UTC)
        )
        jobs = [rows.job(row, now) for row in shown[:limit]]
        if len(shown) < len(found):
            # The store looked at as many jobs as one call may; the caller goes on from there.
            return Page(jobs, job_id(found[-1]["at_batch"], found[-1]["at_ord"]))
        return Page(jobs, jobs[-1].id if jobs and len(shown) > limit else None)

    async def stats(self) -> Stats:
        return Stats([rows.figures(row) for row in await self._pool.rows(call("stats", 1), self._now(), write=False)])

    async def workers(self) -> list[Presence]:
        found = await self._pool.rows(
            "select * from headrace.worker where seen_at > coalesce($1, clock_timestamp()) - interval '1 minute'"
            " order by name, id",
            self._now(),
            write=False,
        )
        return [rows.presence(row) for row in found]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        now = self._now()
        found = await self._pool.rows(call("ahead", 3), id, limit, now, write=False)
        if not found:
            return None
        limited = found[0]["limited"]
        blocked = await self._pool.rows(call("blocked", 2), id, now, write=False) if limited else ()
        return rows.ahead(found[0], limit, blocked)

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        found = await self._pool.rows(call("ended", 2), since, limit, write=False, timeout=60)
        return [rows.ending(row) for row in found]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        views: list[LaneView] = []
        for queue in dict.fromkeys(queues):
            after = self._looked.get(queue, (None, None, None))
            found = await self._pool.rows(call("lanes", 5), queue, limit, *after, write=False, timeout=60)
            if len(found) < limit:
                self._looked.pop(queue, None)
            else:
                self._looked[queue] = (found[-1]["priority"], found[-1]["tenant"], found[-1]["lane"])
            views += [
                LaneView(queue=queue, priority=p, tenant=t, id=n, jobs=jobs, oldest=at) for p, t, n, jobs, at in found
            ]
        return views
