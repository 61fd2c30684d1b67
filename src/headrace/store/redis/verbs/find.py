"""Find: pages of jobs by filter, newest first, with a bounded number of jobs looked at per call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.model.job import Job, JobId, JobState
from headrace.model.records import Filter, Page
from headrace.store.redis.arguments import states_arg
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import STEP, Client, chunks
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.rows import ids_of_runs
from headrace.store.redis.verbs.looks import Looks

_AT_ONCE: Final = 200
"""Jobs that one script looks at."""
_LOOKS: Final = 5_000
"""Jobs that one call looks at."""
_FEW: Final = 10_000
_FEW_LEASES: Final = 200
"""Up to so many jobs, or leases in the history, are read to find those in some states; else all jobs are looked at."""

_entry = msgspec.msgpack.Decoder(list[str | int | float])


class _Step(NamedTuple):
    """Some of a queue's jobs, newest first."""

    ids: list[UUID]
    reached: int
    """All jobs of later steps have lower ids."""
    looks: int
    """The number of jobs that were looked at."""


def _step(ids: list[UUID]) -> _Step:
    return _Step(ids, ids[-1].int, len(ids))


@dataclass(slots=True, order=True)
class _Stream:
    """The jobs of one queue that are still to be looked at."""

    highest: int
    """The highest id that a job of the stream can have, negated, so that the stream with the newest jobs sorts first."""
    queue: str
    steps: AsyncGenerator[_Step]


class Find:
    """See the contract."""

    def __init__(self, client: Client, queues: QueueList, looks: Looks) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._queues, self._looks = queues, looks

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        return await self.find_in(_itself, where, before, limit)

    async def find_in(
        self, parts: Callable[[str], Sequence[str]], where: Filter, before: JobId | None, limit: int
    ) -> Page:
        """As `find`, for queues whose jobs are in several queues. `parts` names these, and is called after the list was read."""
        queues = await self._queues.names()
        if where.queue is not None:
            named = parts(where.queue)
            queues = [queue for queue in queues if queue in named]
        streams = await self._streams(queues, where, before, limit)
        opened = list(streams)
        start = streams[0].highest if streams else 0
        jobs: list[Job] = []
        matches: list[tuple[int, Job]] = []
        looks = 0
        try:
            # A page ends at a lower id than the one before it, so that a caller that follows `next` gets to the end.
            while streams and len(jobs) <= limit and (looks < _LOOKS or streams[0].highest == start):
                newest = heappop(streams)
                step = await anext(newest.steps, None)
                if step is not None:
                    looks += step.looks
                    for job in await self._fitting(newest.queue, step.ids, where):
                        heappush(matches, (-job.id.int, job))
                    newest.highest = 1 - step.reached
                    heappush(streams, newest)
                # A job has its place in the page when all that are newer were looked at.
                while matches and len(jobs) <= limit and (not streams or matches[0][0] < streams[0].highest):
                    jobs.append(heappop(matches)[1])
        finally:
            for stream in opened:
                await stream.steps.aclose()
        if len(jobs) > limit:
            return Page(jobs[:limit], jobs[limit - 1].id if limit > 0 else None)
        return Page(jobs, JobId(UUID(int=1 - streams[0].highest)) if streams else None)

    async def _streams(self, queues: Sequence[str], where: Filter, before: JobId | None, limit: int) -> list[_Stream]:
        """One per queue that may have such jobs. A queue is read when its newest job is the newest of all."""
        bound = b"(" + before.bytes[:14] + b"\xff" if before else b"+"
        newest_ids, silent = await self._client.survey(queues, "newest", bound, states_arg(where.states))
        if silent is not None:
            raise silent
        step = min(_AT_ONCE, max(limit + 1, 20))
        below = before.int - 1 if before else (1 << 128) - 1
        streams = [
            _Stream(
                -min(int.from_bytes(newest, "big"), below),
                queue,
                self._candidates(queue, where, before, step),
            )
            for queue, newest in newest_ids.items()
        ]
        heapify(streams)
        return streams

    async def _fitting(self, queue: str, ids: Sequence[UUID], where: Filter) -> list[Job]:
        if not ids:
            return []
        jobs = await self._looks.look(queue, ids, history=where.text is not None)
        return [replace(job, history=()) if job.history else job for job in jobs.values() if _fits(job, where)]

    async def _candidates(self, queue: str, where: Filter, before: JobId | None, step: int) -> AsyncGenerator[_Step]:
        """Ids of jobs that may match, newest first. All ids of a queue are read only if no shorter list has the matches."""
        if where.states and where.states <= {JobState.DEAD, JobState.CANCELLED}:
            bound = b"(" + before.bytes if before else b"+"
            while ids := await self._client.run(scripts.FIND, queue, "ended", bound, step):
                yield _step([UUID(bytes=id) for id in ids])
                bound = b"(" + ids[-1]
        elif (few := await self._listed(queue, where.states, before)) is not None:
            for ids in chunks(few, step):
                yield _step([UUID(bytes=id) for id in ids])
        else:
            async for some in self._everything(queue, where, before, step):
                yield some

    async def _listed(self, queue: str, states: frozenset[JobState], before: JobId | None) -> list[bytes] | None:
        """Ids of all that may be in these states, newest first; None: no short list has them."""
        if not states:
            return None
        blocked, ready, scheduled, leases, history, singly, ended = await self._client.run(
            scripts.FIND, queue, "counts"
        )
        # In the order of a job's life: a job that moves on meanwhile is met in a later set.
        sources = {
            JobState.BLOCKED: ((blocked, _FEW, "U"),),
            JobState.READY: ((ready, 0, ""),),
            JobState.SCHEDULED: ((scheduled, _FEW, "D"),),
            JobState.RUNNING: ((leases, None, "Z"),),
            JobState.DONE: ((history, _FEW_LEASES, "FH"), (singly, _FEW, "kc")),
            JobState.DEAD: ((ended, _FEW, "ki"),),
            JobState.CANCELLED: ((ended, _FEW, "ki"),),
        }
        wanted = [source for state, those in sources.items() if state in states for source in those if source[0]]
        if any(most is not None and count > most for count, most, _ in wanted):
            return None
        below = before.bytes if before else b""
        ids: set[bytes] = set()
        for names in dict.fromkeys(names for _, _, names in wanted):
            for name in names if names == "FH" else [names]:
                ids.update(await self._members(queue, name, below))
        return sorted((id for id in ids if not below or id < below), reverse=True)

    async def _members(self, queue: str, name: str, below: bytes) -> list[bytes]:
        """The ids in one of a queue's sets, or of the jobs of the leases in it."""
        key = self._keys.queue(queue) + name
        if name == "U":
            alone, runs = await self._client.run(scripts.FIND, queue, "blocked", "")
            return [*alone, *ids_of_runs(runs)]
        members: list[bytes] = await self._wire.command(key, "ZRANGE", key, 0, -1)
        if name not in {"Z", "F", "H"}:
            return members
        return await self._of_leases("running" if name == "Z" else "history", queue, members, below)

    async def _of_leases(self, which: str, queue: str, numbers: Sequence[bytes], below: bytes) -> list[bytes]:
        """Ids of the jobs of leases. One script reads a bounded number, because other calls wait for it."""
        ids: list[bytes] = []
        at = 0
        while numbers:
            whole, at, *some = await self._client.run(scripts.FIND, queue, which, below, at, *numbers[:STEP])
            ids += some
            numbers = numbers[whole:]
        return ids

    async def _everything(self, queue: str, where: Filter, before: JobId | None, step: int) -> AsyncIterator[_Step]:
        bound = b"(" + before.bytes[:14] + b"\xff" if before else b"+"
        highest = before.int if before else 1 << 128
        ids: list[UUID] = []
        while entries := await self._client.run(scripts.FIND, queue, "all", bound, step):
            for entry in await self._in_time(queue, where, entries):
                prefix = int.from_bytes(entry[:14], "big") << 16
                runs = _entry.decode(entry[14:])[1:]
                spans = sorted(((int(runs[n + 1]), int(runs[n + 2])) for n in range(0, len(runs), 4)), reverse=True)
                for low, high in spans:
                    for ord in range(high, low - 1, -1):
                        if prefix | ord < highest:
                            ids.append(UUID(int=prefix | ord))
                        if len(ids) >= step:
                            yield _step(ids)
                            # The search found few jobs so far, so it looks for something rare.
                            ids, step = [], min(_AT_ONCE, 2 * step)
            last = entries[-1][:14]
            bound = b"(" + last
            if where.since is not None or where.until is not None:
                # Batches from another time count as looked at, too.
                yield _Step(ids, int.from_bytes(last, "big") << 16, len(ids) + len(entries))
                ids = []
        if ids:
            yield _step(ids)

    async def _in_time(self, queue: str, where: Filter, entries: list[bytes]) -> list[bytes]:
        """Those of these batches that were enqueued in the time asked for. All jobs of a batch have one time."""
        if where.since is None and where.until is None:
            return entries
        firsts = [UUID(bytes=entry[:14] + int(_entry.decode(entry[14:])[2]).to_bytes(2, "big")) for entry in entries]
        jobs = await self._looks.look(queue, firsts, history=False)
        when = Filter(since=where.since, until=where.until)
        # A batch whose first job is gone stays in, and its other jobs decide.
        return [entry for entry, id in zip(entries, firsts, strict=True) if id not in jobs or _fits(jobs[id], when)]


def _itself(queue: str) -> list[str]:
    return [queue]


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
