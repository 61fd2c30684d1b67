"""The Redis store as the outside sees it: queues in parts look like one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from headrace.job import Batch, Claimed, Job, JobId
from headrace.lane import LaneView
from headrace.lease import Ask, Lease, Orphan, WorkerId
from headrace.store.redis.shards import MARK, Shards, whole
from headrace.store.redis.store import RedisStore
from headrace.store.terms import (
    Ending,
    Enqueued,
    Filter,
    Page,
    Pause,
    PauseKind,
    Progress,
    Pruned,
    QueueStats,
    Retention,
    Stats,
)

_log: Final = logging.getLogger(__name__)


class ShardedRedisStore(RedisStore):
    """A RedisStore whose queues may have parts. How many is written down once in Redis, for everybody.

    Without parts every verb is RedisStore's own.
    """

    def __init__(self, url: str, *, shards: Mapping[str, int] | None = None, **options: Any) -> None:
        super().__init__(url, **options)
        declared = {**self._address.shards, **(shards or {})}
        self._declared = Shards(declared).counts
        self._shards = Shards()

    async def open(self) -> None:
        await super().open()
        for queue, count in self._declared.items():
            known = self._shards.counts.get(queue, 1)
            if known < count:
                await self._wire.command(self._keys.shards, "HSET", self._keys.shards, queue, count)
                self._shards.learn(queue, count)
            elif known > count:
                _log.warning("queue %s has %d shards already: it keeps them, declare shards=%d", queue, known, known)

    async def _refresh(self) -> None:
        await super()._refresh()
        found = await self._wire.command(self._keys.shards, "HGETALL", self._keys.shards)
        for queue, count in zip(found[::2], found[1::2], strict=True):
            self._shards.learn(queue.decode(), int(count))

    # ── workers ─────────────────────────────────────────────────────────────

    async def enqueue(self, batch: Batch) -> Enqueued:
        return await super().enqueue(self._shards.spread(batch) if self._shards else batch)

    async def claim(self, ask: Ask) -> Lease | None:
        if not self._shards:
            return await super().claim(ask)
        lease = await super().claim(self._shards.ask(ask))
        return lease and replace(lease, jobs=[_claimed(job) for job in lease.jobs])

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return await super().wait(self._shards.all_of(queues), timeout)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        found = await super().reap(worker, ttl, limit)
        if not self._shards:
            return found
        return [replace(one, jobs=[(at, _claimed(job)) for at, job in one.jobs]) for one in found]

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        by_part = {part: kept for queue, kept in keep.dead_by_queue.items() for part in self._shards.of(queue)}
        return await super().prune(changed(keep, dead_by_queue=by_part), limit, progress)

    # ── onlookers ───────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return [job and _job(job) for job in await super().get(ids)]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        parts = self._shards.of(where.queue) if where.queue is not None else []
        if len(parts) < 2:
            page = await super().find(where, before=before, limit=limit)
            return Page([_job(job) for job in page.jobs], page.next)
        jobs: list[Job] = []
        more = False
        for part in parts:
            page = await super().find(changed(where, queue=part), before=before, limit=limit)
            jobs += page.jobs
            more = more or page.next is not None
        jobs.sort(key=lambda job: job.id.int, reverse=True)
        more = more or len(jobs) > limit
        shown = [_job(job) for job in jobs[:limit]]
        return Page(shown, shown[-1].id if shown and more else None)

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        return [changed(one, queue=whole(one.queue)) for one in await super().ended(since, limit)]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        found: list[LaneView] = []
        for queue in dict.fromkeys(queues):
            parts = self._shards.of(queue)
            views = await super().lanes(parts, max(1, limit // len(parts)))
            found += [replace(view, queue=queue) for view in views]
        return found

    async def stats(self) -> Stats:
        merged: dict[str, QueueStats] = {}
        for one in (await super().stats()).queues:
            name = whole(one.queue)
            merged[name] = _added(merged[name], one) if name in merged else changed(one, queue=name)
        return Stats([merged[name] for name in sorted(merged)])

    # ── operators ───────────────────────────────────────────────────────────

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        for part in self._shards.of(name) if kind == "queue" else [name]:
            await super().pause(part, kind=kind, by=by, until=until)

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        for part in self._shards.of(name) if kind == "queue" else [name]:
            await super().resume(part, kind=kind)

    async def pauses(self) -> list[Pause]:
        return [one for one in await super().pauses() if one.kind != "queue" or MARK not in one.name]


def _claimed(job: Claimed) -> Claimed:
    return replace(job, queue=whole(job.queue)) if MARK in job.queue else job


def _job(job: Job) -> Job:
    return replace(job, queue=whole(job.queue)) if MARK in job.queue else job


def _added(one: QueueStats, other: QueueStats) -> QueueStats:
    ages = [age for age in (one.oldest_ready, other.oldest_ready) if age is not None]
    return QueueStats(
        queue=one.queue,
        ready=one.ready + other.ready,
        scheduled=one.scheduled + other.scheduled,
        running=one.running + other.running,
        dead=one.dead + other.dead,
        done_total=one.done_total + other.done_total,
        failed_total=one.failed_total + other.failed_total,
        enqueued_total=one.enqueued_total + other.enqueued_total,
        oldest_ready=max(ages, default=None),
        paused=one.paused or other.paused,
    )
