"""The Redis store as the outside sees it: a queue in shards looks like one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from headrace.errors import ConfigError, StoreError
from headrace.model.job import Batch, Claimed, Job, JobId
from headrace.model.lane import MAX_LANES, LaneView
from headrace.model.lease import Ask, Lease, Orphan, WorkerId
from headrace.model.records import (
    Ending,
    Enqueued,
    Filter,
    Page,
    Pause,
    PauseKind,
    Promoted,
    QueueStats,
    Retention,
    Stats,
)
from headrace.store.redis import scripts
from headrace.store.redis.asking import ONE_NODE
from headrace.store.redis.shards import MARK, Shards, whole
from headrace.store.redis.store import RedisStore

_log: Final = logging.getLogger(__name__)


class ShardedRedisStore(RedisStore):
    """A RedisStore whose queues may have shards. How many is written down once in Redis, for everybody.

    Without shards every verb is RedisStore's own.
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
            if known > count:
                _log.warning("queue %s has %d shards already: it keeps them, declare shards=%d", queue, known, known)

    # ── how many ────────────────────────────────────────────────────────────

    async def _refresh(self) -> None:
        await super()._refresh()
        written: dict[str, int] = {}
        try:
            written = await self._learn()
            for queue, count in self._declared.items():
                if written.get(queue, 1) < count:
                    await self._grow(queue, written.get(queue, 1), count)
        except ONE_NODE as error:
            if not self._keys.clustered:
                raise
            # One node is down: the queues of the others go on with what is known, and the next refresh tries again.
            _log.warning("how many shards queues have cannot be told or written: %s", error)
            if not written:
                await self._guess()

    async def _learn(self) -> dict[str, int]:
        """How many shards queues have, as it is written down."""
        found = await self._wire.command(self._keys.shards, "HGETALL", self._keys.shards)
        written = {queue.decode(): int(count) for queue, count in zip(found[::2], found[1::2], strict=True)}
        for queue, count in written.items():
            self._shards.learn(queue, count)
        return written

    async def _guess(self) -> None:
        """The list of queues tells as much; without it, what is declared most likely is what was declared before."""
        try:
            await self._queues()
        except StoreError:
            for queue, count in self._declared.items():
                self._shards.learn(queue, count)

    async def _grow(self, queue: str, known: int, count: int) -> None:
        """Write down that a queue has more shards: paused like the first, which a job in them must find so."""
        new = Shards({queue: count}).of(queue)[known:]
        paused = await self._copy_pause(queue, new)
        self._shards.learn(queue, await self._wire.run(scripts.SHARDS, (self._keys.shards,), queue, count))
        await self._register(new)
        # Whoever paused or resumed it meanwhile may not have known of these; whoever does so from here on does.
        while await self._wire.command(self._keys.paused(queue), "GET", self._keys.paused(queue)) != paused:
            paused = await self._copy_pause(queue, new)

    async def _copy_pause(self, queue: str, shards: Sequence[str]) -> bytes | None:
        first = self._keys.paused(queue)
        paused: bytes | None = await self._wire.command(first, "GET", first)
        for shard in shards:
            key = self._keys.paused(shard)
            if paused is not None:
                await self._wire.command(key, "SET", key, paused)
                if not self._keys.clustered:
                    await self._wire.command(key, "HSET", self._keys.home[0] + "#p", shard, paused)
            elif await self._wire.command(key, "EXISTS", key):
                await super().resume(shard)
        return paused

    async def _queues(self) -> list[str]:
        """On a cluster the janitors ask this every second, so workers soon know of shards that were added."""
        found = await super()._queues()
        for name in found if self._keys.clustered else ():
            queue, mark, number = name.partition(MARK)
            if mark and number.isdecimal():
                with suppress(ConfigError):  # somebody else's
                    self._shards.learn(queue, int(number) + 1)
        return found

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

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        return await (self.wait(ask.queues, timeout) if self._shards else super().wait_to_claim(ask, timeout))

    async def promote(self, limit: int = 1000) -> Promoted:
        if not self._keys.clustered:
            await self._learn()  # every second, so workers soon know of shards that were added
        return await super().promote(limit)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        found = await super().reap(worker, ttl, limit)
        if not self._shards:
            return found
        return [replace(one, jobs=[(at, _claimed(job)) for at, job in one.jobs]) for one in found]

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        by_shard = {shard: kept for queue, kept in keep.dead_by_queue.items() for shard in self._shards.of(queue)}
        return await super().expired_dead(changed(keep, dead_by_queue=by_shard), limit)

    # ── onlookers ───────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return [job and _job(job) for job in await super().get(ids)]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        if where.queue is not None and not self._keys.clustered:
            await self._learn()  # it may have more shards by now; on a cluster the list of queues tells
        page = await super().find(where, before=before, limit=limit)
        return Page([_job(job) for job in page.jobs], page.next)

    def _parts(self, queue: str) -> list[str]:
        return self._shards.of(queue)

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        return [changed(one, queue=whole(one.queue)) for one in await super().ended(since, limit)]

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        found: list[LaneView] = []
        limit = min(limit, MAX_LANES)
        for queue in dict.fromkeys(queues):
            shards = self._shards.of(queue)
            views = await super().lanes(shards, max(1, limit // len(shards)))
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
        pause = partial(super().pause, kind=kind, by=by, until=until)
        await (self._to_each_shard(name, pause) if kind == "queue" else pause(name))

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        resume = partial(super().resume, kind=kind)
        await (self._to_each_shard(name, resume) if kind == "queue" else resume(name))

    async def _to_each_shard(self, queue: str, act: Callable[[str], Awaitable[None]]) -> None:
        """Also to those that somebody has added, before this call or during it."""
        round = self._round()
        done = 0
        while True:
            with suppress(*ONE_NODE if self._keys.clustered else ()):
                if (count := await self._wire.command(self._keys.shards, "HGET", self._keys.shards, queue)) is not None:
                    self._shards.learn(queue, int(count))
            shards = self._shards.of(queue)
            if len(shards) == done:
                break
            for shard in shards[done:]:
                async with round.asking(shard):
                    await act(shard)
            done = len(shards)
        round.end(needs_all=True)

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
        oldest_at_least=one.oldest_at_least or other.oldest_at_least,
    )
