"""Enqueue: a batch in one script, or on a cluster in one script per queue."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.errors import ConfigError, IdempotencyConflict, Unavailable
from headrace.model.job import Batch, JobId, NewJob
from headrace.model.lane import Lane
from headrace.model.records import Enqueued
from headrace.store.redis.arguments import Runs, by_queue, due_args, lock_args, microseconds
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.packing import packed
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.element import encode_one, encode_run, lane_name
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.leaving import UNLISTED
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.store_clock import StoreClock

pack = msgspec.msgpack.Encoder().encode

_MOST_RUNS: Final = 1000
"""Runs of jobs that one enqueue script stores. Each costs the server 5 to 15 µs, and no other client is served meanwhile."""
_MOST_HEADS: Final = 1000
"""Lanes whose command is kept as far as it is the same for every job."""


def _existing(batch: Batch, answer: Reply) -> list[tuple[int, JobId]]:
    """Places of a batch whose job was there before. Raises IdempotencyConflict."""
    if len(answer) == 1:
        return []
    ids = [(int(ord), JobId(UUID(bytes=id))) for ord, id in zip(answer[1::2], answer[2::2], strict=True)]
    if answer[0] == b"conflict":
        ord, known = ids[0]
        job = batch.jobs[ord]
        raise IdempotencyConflict(job.task, job.key.name if job.key else "", known)
    return ids


class Enqueue:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, queues: QueueList, locator: JobLocator) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._queues, self._locator = time, queues, locator
        self._heads: dict[Lane, bytes] = {}

    async def enqueue(self, batch: Batch) -> Enqueued:
        if not batch.jobs:
            return Enqueued({})
        if (job := self._plain(batch)) is not None and await self._enqueue_one(batch, job):
            return Enqueued({})
        spread = by_queue(batch)
        for queues in self._together(spread):
            _check_runs(queues)
        await self._queues.register(spread)
        now = await self._time.now_us()
        existing: dict[int, JobId] = {}
        for queues in self._together(spread):
            keys = self._keys.of(*queues)
            script, args = self._call(batch, queues, now)
            existing.update(_existing(batch, await self._queues.fill(script, list(queues), *args)))
            await self._client.confirmed(keys[0])
        self._locator.remember(batch.id, next(iter(spread)))
        return Enqueued(existing)

    async def _enqueue_one(self, batch: Batch, job: NewJob) -> bool:
        """Store a plain job by the short script. False: nothing has changed, and the general script must store it."""
        queue = job.lane.queue
        await self._queues.register((queue,))
        element = encode_one(batch.id.bytes[:14], job, await self._time.now_us())
        keys = self._keys.pair(queue)
        if not await self._wire.run(scripts.ENQUEUE_ONE, keys, lane_name(job.lane), element):
            return False
        await self._client.confirmed(keys[0])
        self._locator.remember(batch.id, queue)
        return True

    def _plain(self, batch: Batch) -> NewJob | None:
        """The only job of a batch, if the short script can store it."""
        if len(batch.jobs) != 1 or self._keys.clustered:
            return None
        [job] = batch.jobs
        plain = job.due is None and job.key is None and job.unique is None and not job.lane.limits
        return job if plain else None

    # The parts of an enqueue of sync code. Its thread is not that of the event loop.

    def command(self, batch: Batch) -> bytes | None:
        """The command for a batch; None: the store must list its queues or ask for the time first."""
        job = self._plain(batch)
        if job is None:
            return self.general_command(batch)
        now = self._time.known_us()
        if now is None or job.lane.queue not in self._queues.registered:
            return None
        element = encode_one(batch.id.bytes[:14], job, now)
        return b"%b%d\r\n%b\r\n" % (self._heads.get(job.lane) or self._head(job.lane), len(element), element)

    def general_command(self, batch: Batch) -> bytes | None:
        """The command for a batch that the server answered with 0, because the short script cannot store it."""
        spread = by_queue(batch)
        now = self._time.known_us()
        if now is None or not self._queues.registered.issuperset(spread):
            return None
        keys = self._keys.of(*spread)
        script, args = self._call(batch, spread, now)
        return packed(("EVALSHA", script.sha, len(keys), *keys, *args))

    def answered(self, batch: Batch, answer: Reply) -> Enqueued:
        """What the server's answer to these commands means. Raises IdempotencyConflict."""
        existing: dict[int, JobId] = {}
        if answer != 1:
            if answer[0] == UNLISTED:
                raise Unavailable("the store must list the queue first; nothing was stored")
            existing = dict(_existing(batch, answer))
        self._locator.remember(batch.id, batch.jobs[0].lane.queue)
        return Enqueued(existing)

    def _head(self, lane: Lane) -> bytes:
        """The command for a job of this lane, up to the length of its last word, the element."""
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        words = ("EVALSHA", scripts.ENQUEUE_ONE.sha, 2, *self._keys.pair(lane.queue), lane_name(lane), b"")
        head = self._heads[lane] = packed(words).removesuffix(b"0\r\n\r\n")
        return head

    def _call(self, batch: Batch, queues: Runs, now: int) -> tuple[Script, tuple[Any, ...]]:
        prefix, jobs = batch.id.bytes[:14], batch.jobs
        keyed: list[tuple[Any, ...]] = []
        locks: list[tuple[Any, ...]] = []
        plan: list[list[Any]] = []
        elements: list[bytes] = []
        names: dict[int, str] = {}
        for number, (queue, runs) in enumerate(queues.items(), 1):
            segments: list[Any] = []
            for low, high in runs:
                first = jobs[low]
                lane = first.lane
                name = names.get(id(lane))
                if name is None:
                    name = names[id(lane)] = lane_name(lane)
                segments += (name, low, high, *due_args(first.due))
                elements += encode_run(prefix, jobs, low, high, now)
                if first.key is not None:
                    ttl = microseconds(first.key.ttl)
                    # The server must not expire keys by its own clock while a test's clock decides.
                    keep = 0 if self._time.clock is not None else max(1, -(-ttl // 1000))
                    key = self._keys.idempotency(queue, first.task, first.key.name)
                    keyed.append((low, key, first.key.digest.hex(), ttl, keep))
                if first.unique is not None:
                    locks.append(lock_args(low, number, first, first.unique))
            plan.append(segments)
        # The first job of a batch makes the key, whichever queue it goes to.
        keyed.sort(key=lambda one: one[0])
        locks.sort(key=lambda one: one[0])
        words = [[word for one in keyed for word in one], [word for one in locks for word in one], *plan]
        script = scripts.ENQUEUE_LOCKED if locks else scripts.ENQUEUE
        return script, (self._time.given, prefix, pack(words), *elements)

    def _together(self, spread: Runs) -> list[Runs]:
        """Queues that one script can fill: all of one server, each by itself on a cluster."""
        return [{queue: runs} for queue, runs in spread.items()] if self._keys.clustered else [spread]


def _check_runs(queues: Runs) -> None:
    """A call is all or nothing, so one script stores it. Raises ConfigError for a call that would hold up the server for too long."""
    runs = sum(map(len, queues.values()))
    if runs > _MOST_RUNS:
        raise ConfigError(
            f"the call has {runs:,} runs of jobs, and Redis stores at most {_MOST_RUNS:,} in one call: a run is the jobs side by "
            "side that have the same lane and due time, or one job with a key or a unique lock. "
            "Send the jobs in several calls, or put those of one lane side by side"
        )
