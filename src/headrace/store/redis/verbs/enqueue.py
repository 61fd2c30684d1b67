"""Enqueue: a batch in one script, or on a cluster in one script per queue."""

from __future__ import annotations

from typing import Final

from headrace.errors import Unavailable
from headrace.model.job import Batch, JobId, NewJob
from headrace.model.lane import Lane
from headrace.model.records import Enqueued
from headrace.store.redis.arguments import Runs, by_queue
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.packing import packed
from headrace.store.redis.element import encode_one, lane_name
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.leaving import UNLISTED
from headrace.store.redis.plans import LINKED, check_runs, enqueue_call, existing_of, has_waits, only_chains
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.verbs.enqueue_links import LinkedEnqueue

_MOST_HEADS: Final = 1000
"""Lanes whose command is kept as far as it is the same for every job."""


class Enqueue:
    """See the contract."""

    def __init__(
        self, client: Client, time: StoreClock, queues: QueueList, locator: JobLocator, links: LinkedEnqueue
    ) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._queues, self._locator, self._links = time, queues, locator, links
        self._heads: dict[Lane, bytes] = {}

    async def enqueue(self, batch: Batch) -> Enqueued:
        if batch.gates or batch.edges or batch.seals:
            return await self._links.enqueue(batch, by_queue(batch))
        if not batch.jobs:
            return Enqueued({})
        if (job := self._plain(batch)) is not None and await self._enqueue_one(batch, job):
            return Enqueued({})
        spread = by_queue(batch)
        if has_waits(batch, spread):
            if not only_chains(batch, spread):
                return await self._links.enqueue(batch, spread)
            await self._links.refuse_older(spread)
        for queues in self._together(spread):
            check_runs(queues)
        await self._queues.register(spread)
        now = await self._time.now_us()
        existing: dict[int, JobId] = {}
        for queues in self._together(spread):
            keys = self._keys.of(*queues)
            script, args, _ = enqueue_call(self._keys, self._time, batch, queues, now)
            answer = await self._queues.fill(script, list(queues), *args)
            if answer[0] == LINKED:
                answer = await self._links.fill(batch, queues, now)
            existing.update(existing_of(batch, answer))
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
        plain = job.due is None and job.key is None and job.unique is None and job.wait is None and not job.lane.limits
        return job if plain else None

    # The parts of an enqueue of sync code. Its thread is not that of the event loop.

    def command(self, batch: Batch) -> bytes | None:
        """The command for a batch; None: the store must list its queues or ask for something first."""
        if batch.linked:
            return None
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
        script, args, _ = enqueue_call(self._keys, self._time, batch, spread, now)
        return packed(("EVALSHA", script.sha, len(keys), *keys, *args))

    def answered(self, batch: Batch, answer: Reply) -> Enqueued:
        """What the server's answer to these commands means. Raises IdempotencyConflict."""
        existing: dict[int, JobId] = {}
        if answer != 1:
            if answer[0] in {UNLISTED, LINKED}:
                raise Unavailable("the store must ask the server something first; nothing was stored")
            existing = dict(existing_of(batch, answer))
        self._locator.remember(batch.id, batch.jobs[0].lane.queue)
        return Enqueued(existing)

    def _head(self, lane: Lane) -> bytes:
        """The command for a job of this lane, up to the length of its last word, the element."""
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        words = ("EVALSHA", scripts.ENQUEUE_ONE.sha, 2, *self._keys.pair(lane.queue), lane_name(lane), b"")
        head = self._heads[lane] = packed(words).removesuffix(b"0\r\n\r\n")
        return head

    def _together(self, spread: Runs) -> list[Runs]:
        """Queues that one script can fill: all of one server, each by itself on a cluster."""
        return [{queue: runs} for queue, runs in spread.items()] if self._keys.clustered else [spread]
