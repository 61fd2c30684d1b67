"""The verbs that look and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from headrace.model.clock import Clock
from headrace.model.job import Job, JobId, JobState, job_id, split_id
from headrace.model.lane import MAX_LANES, Ahead, LaneView
from headrace.model.lease import Presence
from headrace.model.records import Ending, Filter, Page, QueueStats, Stats
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import text
from headrace.store.postgres.base import Base, call
from headrace.store.postgres.pool import transaction

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

_QUEUES: Final = 1000
"""Queues that one statement reads the figures of."""
_HEADS: Final = 200
"""Lanes that one statement looks at for the oldest job."""
_FEW: Final = 2
"""Lanes of each queue that the first statements look at."""
_LANES: Final = 100
"""Lanes that one statement counts the jobs of."""
_RANGES: Final = 5000
"""Ranges that it counts, and with its last lane up to 10,000 more."""
_SORTED: Final = 5000
"""Endings that one statement sorts."""
_PAGE: Final = 500
"""Endings that it answers."""
_MOMENT: Final = timedelta(microseconds=1)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_NO_JOB: Final = (None, None)
_NO_LANE: Final = (None, None, None)

Spot = tuple[int, str, int]
"""Priority, tenant, lane."""

_AFTER_ALL: Final = (UUID(int=2**128 - 1), 0)
"""Greater than any job's place."""


class Looking(Base):
    """See contract.Store."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock=clock)
        # Where the last look at a queue's lanes ended.
        self._looked: dict[str, Spot] = {}

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
        found: list[QueueStats] = []
        while True:
            last = found[-1].queue if found else ""
            page = await self._pool.rows(call("figures", 3), last, _QUEUES, self._now(), write=False)
            found += [rows.figures(row) for row in page]
            if len(page) < _QUEUES:
                return Stats(await self._with_ages(found))

    async def _with_ages(self, queues: list[QueueStats]) -> list[QueueStats]:
        """Look for the oldest jobs: at few lanes of many queues in a statement, then at more lanes of those that have them."""
        waiting = [each.queue for each in queues if each.ready > 0]
        if not waiting:
            return queues
        now = await self.now()
        oldest: dict[str, datetime] = {}
        looked: dict[str, int] = {}
        further: dict[str, Spot] = {}

        async def look(some: list[str], lanes: int, after: Spot | None = None) -> None:
            for row in await self._pool.rows(call("oldest", 5), some, lanes, *(after or _NO_LANE), write=False):
                queue = row["queue"]
                oldest[queue] = min(oldest.get(queue, row["enqueued_at"]), row["enqueued_at"])
                looked[queue] = looked.get(queue, 0) + row["lanes"]
                if row["lanes"] == lanes:
                    further[queue] = row["priority"], row["tenant"], row["lane"]

        for begin in range(0, len(waiting), _HEADS // _FEW):
            await look(waiting[begin : begin + _HEADS // _FEW], _FEW)
        many: set[str] = set()
        while further:
            queue, after = further.popitem()
            if looked[queue] > MAX_LANES:
                many.add(queue)
            else:
                await look([queue], _HEADS, after)
        return [
            replace(each, oldest_ready=now - oldest[each.queue], oldest_at_least=each.queue in many)
            if each.queue in oldest
            else each
            for each in queues
        ]

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
        """Span after span of time; one with too many endings is asked for again in parts."""
        now: datetime = (await self._pool.rows("select clock_timestamp()", write=False))[0][0]
        width = max(now - since, timedelta(seconds=1))
        begin, end, after = since, _NEVER, _NO_JOB
        found: list[Ending] = []
        while len(found) < limit:
            most = min(_PAGE, limit - len(found))
            page = await self._pool.rows(
                call("ended_span", 6), begin, end, _SORTED, most, *after, write=False, timeout=60
            )
            if page and page[0]["batch"] is None:
                width = max(width / 32, _MOMENT)
                end = begin + width
                continue
            found += [rows.ending(row) for row in page]
            if len(page) == most:
                begin, after = page[-1]["finished_at"], (page[-1]["batch"], page[-1]["ord"])
            elif end == _NEVER:
                break
            else:
                # What comes may be sparser; past the present there is nothing but by a clock that a test sets.
                begin, after, width = end, _NO_JOB, width * 4
                end = _NEVER if begin + width > now else begin + width
        return found

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        most = min(limit, MAX_LANES)
        return [view for queue in dict.fromkeys(queues) for view in await self._lanes_of(queue, most)]

    async def _lanes_of(self, queue: str, limit: int) -> list[LaneView]:
        """Lanes after those of the last look, then from the first one on up to there; some in each statement."""
        start = at = self._looked.pop(queue, None)
        again = start is None
        views: list[LaneView] = []
        while len(views) < limit:
            most = min(_LANES, limit - len(views))
            page = await self._pool.rows(
                call("lane_page", 6), queue, most, _RANGES, *(at or _NO_LANE), write=False, timeout=60
            )
            for priority, tenant, lane, jobs, oldest, _ in page:
                at = priority, tenant, lane
                if again and start is not None and _order(at) > _order(start):
                    return views
                views.append(LaneView(queue=queue, priority=priority, tenant=tenant, id=lane, jobs=jobs, oldest=oldest))
            if not page or not page[-1]["more"]:
                if again:
                    return views
                again, at = True, None
        if at is not None:
            self._looked[queue] = at
        return views


def _order(spot: Spot) -> Spot:
    return -spot[0], spot[1], spot[2]
