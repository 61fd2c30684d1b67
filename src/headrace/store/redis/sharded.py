"""The Redis store as headrace uses it: a queue in shards looks like one queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec.structs import replace

from headrace.errors import StoreError
from headrace.model.clock import Clock
from headrace.model.job import Batch, Claimed, Job, JobId
from headrace.model.lane import MAX_LANES, LaneView
from headrace.model.lease import Ask, Lease, Orphan, Presence, Pulse, Token, WorkerId
from headrace.model.records import (
    Ending,
    Enqueued,
    Filter,
    Finding,
    Page,
    Pause,
    PauseKind,
    Promoted,
    QueueStats,
    Retention,
    Stats,
)
from headrace.store.redis.blocking import BlockingEnqueue, blocking
from headrace.store.redis.shard_counts import ShardCounts
from headrace.store.redis.shards import MARK, whole
from headrace.store.redis.store import RedisStore

_log: Final = logging.getLogger(__name__)


class ShardedRedisStore:
    """Wraps a RedisStore. It replaces a queue by its shards in what goes in, and shards by their queue in what comes out.

    A verb that is about no queue by name is the RedisStore's own. So is each verb of workers while no queue has shards.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, shards: Mapping[str, int] | None = None) -> None:
        self.store = store = RedisStore(url, clock=clock)
        self._clustered = store.client.keys.clustered
        self.counts = ShardCounts(store.client, store.queues, store.resume, shards or {})
        self._shards = self.counts.shards
        store.time.after_refresh(self.counts.refresh)
        if self._clustered:
            store.queues.on_read = self.counts.learn_from

        self.close = store.close
        self.migrate = store.migrate
        self.check = store.check
        self.now = store.now
        self.hears = store.hears
        self.wait_due = store.wait_due
        self.settle = store.settle
        self.report = store.report
        self.detach = store.detach
        self.abandon = store.abandon
        self.retire = store.retire
        self.prune = store.prune
        self.workers = store.workers
        self.refuse_older = store.refuse_older
        self.ahead = store.ahead
        self.cancel = store.cancel
        self.retry = store.retry
        self.delete = store.delete
        self.limits = store.limits
        self.limit = store.limit
        self.records = store.records
        self.record = store.record
        self.add_history = store.add_history
        self.read_history = store.read_history
        self.fold_history = store.fold_history
        self.add_steps = store.add_steps
        self.read_steps = store.read_steps
        self.answer_wait = store.answer_wait
        self.signal = store.signal
        self.gates = store.gates
        self.groups = store.groups
        self.links = store.links

    @property
    def remarks(self) -> Sequence[Finding]:
        return self.store.remarks

    async def open(self) -> None:
        await self.store.open()
        for queue, count in self.counts.declared.items():
            known = self._shards.counts.get(queue, 1)
            if known > count:
                _log.warning("queue %s has %d shards already: it keeps them, declare shards=%d", queue, known, known)

    # ── workers ─────────────────────────────────────────────────────────────

    async def enqueue(self, batch: Batch) -> Enqueued:
        return await self.store.enqueue(self._shards.spread(batch) if self._shards else batch)

    def blocking(self) -> BlockingEnqueue | None:
        def spread(batch: Batch) -> Batch:
            return self._shards.spread(batch) if self._shards else batch

        return blocking(self.store.client.address, self.store.enqueuing, spread)

    async def claim(self, ask: Ask) -> Lease | None:
        if not self._shards:
            return await self.store.claim(ask)
        lease = await self.store.claim(self._shards.ask(ask))
        return lease and replace(lease, jobs=[_claimed(job) for job in lease.jobs])

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return await self.store.wait(self._shards.all_of(queues), timeout)

    async def repeat_hints(self, queues: Sequence[str]) -> None:
        await self.store.repeat_hints(self._shards.all_of(queues))

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        if not self._shards:
            return await self.store.wait_to_claim(ask, timeout)
        await self.wait(ask.queues, timeout)
        return True

    async def promote(self, limit: int = 1000) -> Promoted:
        if not self._clustered:
            await self.counts.learn()  # every few seconds, so workers soon know of shards that were added
        return await self.store.promote(limit)

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        pulse = await self.store.heartbeat(tokens, ttl, presence)
        if presence is not None and (self._shards or self.counts.declared):
            # A worker that does no upkeep also has to know of shards that were added.
            with suppress(StoreError):
                await self.counts.learn()
        # A heartbeat names queues and not their shards, so it has looked into the first shards only.
        return replace(pulse, ready=None) if self._shards else pulse

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        orphans = await self.store.reap(worker, ttl, limit)
        if not self._shards:
            return orphans
        return [replace(orphan, jobs=[(at, _claimed(job)) for at, job in orphan.jobs]) for orphan in orphans]

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        by_shard = {shard: kept for queue, kept in keep.dead_by_queue.items() for shard in self._shards.of(queue)}
        return await self.store.expired_dead(replace(keep, dead_by_queue=by_shard), limit)

    # ── looks ───────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return [job and _job(job) for job in await self.store.get(ids)]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        if where.queue is not None and not self._clustered:
            await self.counts.learn()  # it may have more shards by now; on a cluster the list of queues tells
        page = await self.store.finder.find_in(self._shards.of, where, before, limit)
        return Page([_job(job) for job in page.jobs], page.next)

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        return [replace(ending, queue=whole(ending.queue)) for ending in await self.store.ended(since, limit)]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        views: list[LaneView] = []
        limit = min(limit, MAX_LANES)
        for queue in dict.fromkeys(queues):
            shards = self._shards.of(queue)
            some = await self.store.lanes(shards, max(1, limit // len(shards)))
            views += [replace(view, queue=queue) for view in some]
        return views

    async def stats(self) -> Stats:
        merged: dict[str, QueueStats] = {}
        for one in (await self.store.stats()).queues:
            name = whole(one.queue)
            merged[name] = _added(merged[name], one) if name in merged else replace(one, queue=name)
        return Stats([merged[name] for name in sorted(merged)])

    # ── operators ───────────────────────────────────────────────────────────

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        pause = partial(self.store.pause, kind=kind, by=by, until=until)
        await (self.counts.on_each(name, pause) if kind == "queue" else pause(name))

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        resume = partial(self.store.resume, kind=kind)
        await (self.counts.on_each(name, resume) if kind == "queue" else resume(name))

    async def pauses(self) -> list[Pause]:
        return [pause for pause in await self.store.pauses() if pause.kind != "queue" or MARK not in pause.name]


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
        blocked=one.blocked + other.blocked,
        dead=one.dead + other.dead,
        done_total=one.done_total + other.done_total,
        failed_total=one.failed_total + other.failed_total,
        enqueued_total=one.enqueued_total + other.enqueued_total,
        oldest_ready=max(ages, default=None),
        paused=one.paused or other.paused,
        oldest_at_least=one.oldest_at_least or other.oldest_at_least,
    )
