"""The verbs of onlookers: get, find, stats, workers. None of them writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.job import Job, JobId, JobState, split_id
from headrace.lane import Ahead, Blocked, LaneView
from headrace.lease import Presence
from headrace.store.redis import scripts
from headrace.store.redis.base import STEP, chunks, foreign
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import from_us, lane_of, to_us
from headrace.store.redis.janitoring import Janitoring
from headrace.store.redis.jobs import ending_of, job_of
from headrace.store.redis.records import paused_of
from headrace.store.terms import Ending, Filter, Page, QueueStats, Stats

_AT_ONCE: Final = 200
"""Jobs that one script looks at."""
_LANES: Final = 1000
"""Lanes that `stats` looks at for the oldest job."""
_COUNTED: Final = 10_000
"""Jobs of a lane that `lanes` counts to."""
_HOLDERS: Final = 5
_FEW: Final = 10_000
_FEW_LEASES: Final = 200
"""Up to so many jobs, or leases in the history, are read to find those in some states; else all jobs are looked at."""
_SEEN_WITHIN: Final = 60_000_000

_presence = msgspec.msgpack.Decoder(tuple[int, Presence])
_entry = msgspec.msgpack.Decoder(list[str | int | float])


class Looking(Janitoring):
    """See the contract."""

    _looked = 0

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        found: dict[UUID, Job] = {}
        wanted = list(dict.fromkeys(ids))
        queues = await self._queues() if wanted else []
        for some in chunks(wanted, _AT_ONCE):
            # Where it was enqueued from here, its queue is known; an id alone does not say.
            likely = self._homes.get(split_id(some[0])[0].int)
            round = self._round()
            for queue in sorted(queues, key=lambda queue: queue != likely):
                left = [id for id in some if id not in found]
                if left and not await round.passes_over(queue):
                    async with round.asking(queue):
                        found.update(await self._look(queue, left, history=True))
            # Only who has asked everybody may say that there is no such job.
            round.end(needs_all=any(id not in found for id in some))
        return [found.get(id) for id in ids]

    async def _look(self, queue: str, ids: Sequence[UUID], *, history: bool) -> dict[UUID, Job]:
        answers: list[Reply] = []
        while len(answers) < len(ids):  # fewer come at once where they are large
            answers += await self._run(scripts.GET, queue, int(history), *(id.bytes for id in ids[len(answers) :]))
        now = await self._now_us()
        return {id: job_of(answer, queue, now) for id, answer in zip(ids, answers, strict=True) if answer}

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        queues = await self._queues()
        if where.queue is not None:
            queues = [queue for queue in queues if queue == where.queue]
        heads: dict[str, Job] = {}
        streams = {queue: self._matching(queue, where, before, limit) for queue in queues}
        try:
            for queue, stream in streams.items():
                if (job := await anext(stream, None)) is not None:
                    heads[queue] = job
            jobs: list[Job] = []
            while heads and len(jobs) <= limit:
                newest = max(heads, key=lambda queue: heads[queue].id.int)
                jobs.append(heads.pop(newest))
                if (job := await anext(streams[newest], None)) is not None:
                    heads[newest] = job
        finally:
            for stream in streams.values():
                await stream.aclose()
        page = jobs[:limit]
        return Page(page, page[-1].id if page and len(jobs) > limit else None)

    async def _matching(self, queue: str, where: Filter, before: JobId | None, page: int) -> AsyncGenerator[Job]:
        """The jobs of one queue that fit, newest first."""
        async for ids in self._candidates(queue, where, before, min(_AT_ONCE, max(page + 1, 20))):
            found = await self._look(queue, ids, history=where.text is not None)
            for id in ids:
                job = found.get(id)
                if job is not None and _fits(job, where):
                    yield replace(job, history=()) if job.history else job

    async def _candidates(
        self, queue: str, where: Filter, before: JobId | None, step: int
    ) -> AsyncIterator[list[UUID]]:
        """Ids worth a look, newest first: all of them only where no shorter list will do."""
        if where.states and where.states <= {JobState.DEAD, JobState.CANCELLED}:
            bound = b"(" + before.bytes if before else b"+"
            while ids := await self._run(scripts.FIND, queue, "ended", bound, step):
                yield [UUID(bytes=id) for id in ids]
                bound = b"(" + ids[-1]
        elif (few := await self._listed(queue, where.states, before)) is not None:
            for ids in chunks(few, step):
                yield [UUID(bytes=id) for id in ids]
        else:
            async for some in self._everything(queue, where, before, step):
                yield some

    async def _listed(self, queue: str, states: frozenset[JobState], before: JobId | None) -> list[bytes] | None:
        """Ids of all that may be in these states, newest first; None: no short list has them."""
        if not states:
            return None
        ready, scheduled, leases, history, singly, ended = await self._run(scripts.FIND, queue, "counts")
        # In the order of a job's life: what goes on meanwhile is met further on.
        sources = {
            JobState.READY: ((ready, 0, None),),
            JobState.SCHEDULED: ((scheduled, _FEW, "D"),),
            JobState.RUNNING: ((leases, None, "Z"),),
            JobState.DONE: ((history, _FEW_LEASES, "F"), (singly, _FEW, "kc")),
            JobState.DEAD: ((ended, _FEW, "ki"),),
            JobState.CANCELLED: ((ended, _FEW, "ki"),),
        }
        wanted = [source for state, those in sources.items() if state in states for source in those if source[0]]
        if any(most is not None and count > most for count, most, _ in wanted):
            return None
        below = before.bytes if before else b""
        found: set[bytes] = set()
        for name in dict.fromkeys(name for _, _, name in wanted if name is not None):
            key = self._keys.queue(queue) + name
            members = await self._wire.command(key, "ZRANGE", key, 0, -1)
            if name in {"Z", "F"}:
                members = await self._of_leases("running" if name == "Z" else "history", queue, members, below)
            found.update(members)
        return sorted((id for id in found if not below or id < below), reverse=True)

    async def _of_leases(self, which: str, queue: str, numbers: Sequence[bytes], below: bytes) -> list[bytes]:
        """Ids of the jobs of leases, as much at once as keeps nobody else waiting."""
        ids: list[bytes] = []
        at = 0
        while numbers:
            whole, at, *some = await self._run(scripts.FIND, queue, which, below, at, *numbers[:STEP])
            ids += some
            numbers = numbers[whole:]
        return ids

    async def _everything(
        self, queue: str, where: Filter, before: JobId | None, step: int
    ) -> AsyncIterator[list[UUID]]:
        bound = b"(" + before.bytes[:14] + b"\xff" if before else b"+"
        highest = before.int if before else 1 << 128
        ids: list[UUID] = []
        while entries := await self._run(scripts.FIND, queue, "all", bound, step):
            for entry in await self._in_time(queue, where, entries):
                prefix = int.from_bytes(entry[:14], "big") << 16
                runs = _entry.decode(entry[14:])[1:]
                spans = sorted(((int(runs[n + 1]), int(runs[n + 2])) for n in range(0, len(runs), 4)), reverse=True)
                for low, high in spans:
                    for ord in range(high, low - 1, -1):
                        if prefix | ord < highest:
                            ids.append(UUID(int=prefix | ord))
                        if len(ids) >= step:
                            yield ids
                            # Who has to go on looks for something rare.
                            ids, step = [], min(_AT_ONCE, 2 * step)
            bound = b"(" + entries[-1][:14]
        if ids:
            yield ids

    async def _in_time(self, queue: str, where: Filter, entries: list[bytes]) -> list[bytes]:
        """Those of these batches that were enqueued in the time asked for: one job of a batch tells of all."""
        if where.since is None and where.until is None:
            return entries
        firsts = [UUID(bytes=entry[:14] + int(_entry.decode(entry[14:])[2]).to_bytes(2, "big")) for entry in entries]
        found = await self._look(queue, firsts, history=False)
        when = Filter(since=where.since, until=where.until)
        # Of one whose first job is gone the others tell.
        return [entry for entry, id in zip(entries, firsts, strict=True) if id not in found or _fits(found[id], when)]

    async def stats(self) -> Stats:
        queues = await self._queues()
        answers = await self._ask_each(scripts.STATS, queues, self._given, _LANES)
        found = [_stats(queue, answer) for queue, answer in answers.items()]
        return Stats([stats for stats in found if stats.enqueued_total or stats.paused])

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        queues = await self._queues()
        answers = await self._run_each(scripts.ENDED, queues, to_us(since), limit)
        found = [ending_of(one, queue) for queue, answer in zip(queues, answers, strict=True) for one in answer]
        return sorted(found, key=lambda ending: (ending.at, ending.id))[:limit]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        names = list(dict.fromkeys(queues))
        self._looked += limit
        answers = await self._ask_each(scripts.LANES, names, limit, self._looked, _COUNTED)
        return [
            _lane_view(lane.decode(), queue, jobs, int(oldest))
            for queue, answer in answers.items()
            for lane, jobs, oldest in answer
        ]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        queues = await self._queues()
        likely = self._homes.get(split_id(id)[0].int)
        for queue in sorted(queues, key=lambda queue: queue != likely):
            answer: Reply = await self._run(scripts.AHEAD, queue, self._given, id.bytes, limit)
            if answer:
                lane, higher, suspect, here, tenant, *blocked = answer
                paused, tenant_paused = paused_of(here), paused_of(tenant)
                return Ahead(
                    lane=lane,
                    higher=higher,
                    limit=limit,
                    suspect=bool(suspect),
                    paused_by=paused.by,
                    paused_since=paused.since,
                    paused_until=paused.until,
                    tenant_paused_by=tenant_paused.by,
                    tenant_paused_since=tenant_paused.since,
                    tenant_paused_until=tenant_paused.until,
                    blocked=tuple(
                        [await self._blocked(queue, *blocked[at : at + 5]) for at in range(0, len(blocked), 5)]
                    ),
                )
        return None

    async def _blocked(
        self, queue: str, key: bytes, concurrency: bytes, held: bytes, opens: bytes, never: bytes
    ) -> Blocked:
        by: list[UUID] = []
        if int(concurrency) >= 0:
            # Elsewhere than on a cluster units are held in any queue.
            queues = [queue] if self._keys.clustered else await self._queues()
            found = await self._run_each(scripts.HOLDERS, queues, key, _HOLDERS)
            by = [UUID(bytes=id) for ids in found for id in ids][:_HOLDERS]
        return Blocked(
            key=key.decode(),
            concurrency=int(concurrency) if int(concurrency) >= 0 else None,
            held=int(held),
            by=tuple(by),
            opens_at=from_us(int(opens)) if int(opens) >= 0 else None,
            never=never == b"1",
        )

    async def workers(self) -> list[Presence]:
        records: Reply = await self._wire.command(self._keys.workers, "HVALS", self._keys.workers)
        now = await self._now_us()
        try:
            seen = [_presence.decode(record) for record in records]
        except msgspec.DecodeError as error:
            raise foreign(self._keys.workers) from error
        return [replace(presence, seen_at=from_us(at)) for at, presence in seen if at > now - _SEEN_WITHIN]


def _lane_view(name: str, queue: str, jobs: int, oldest: int) -> LaneView:
    lane = lane_of(name, queue)
    return LaneView(
        queue=queue,
        priority=lane.priority,
        tenant=lane.tenant,
        id=lane.id,
        jobs=jobs,
        oldest=from_us(oldest),
    )


def _stats(queue: str, answer: list[bytes | int]) -> QueueStats:
    ready, scheduled, running, dead, done, failed, enqueued, oldest, paused, now = answer
    age = timedelta(microseconds=max(0, int(now) - int(oldest))) if oldest else None
    return QueueStats(
        queue=queue,
        ready=int(ready),
        scheduled=int(scheduled),
        running=int(running),
        dead=int(dead),
        done_total=int(done),
        failed_total=int(failed),
        enqueued_total=int(enqueued),
        oldest_ready=age,
        paused=bool(paused),
    )


def _fits(job: Job, where: Filter) -> bool:
    return (
        (not where.states or job.state in where.states)
        and where.task in {None, job.task}
        and where.tenant in {None, job.tenant}
        and (where.since is None or job.enqueued_at >= where.since)
        and (where.until is None or job.enqueued_at < where.until)
        and (where.text is None or _mentions(job, where.text))
    )


def _mentions(job: Job, text: str) -> bool:
    texts = [job.task, job.note or "", *(part for why in job.history for part in (why.kind, why.message))]
    return any(text in one for one in texts)
