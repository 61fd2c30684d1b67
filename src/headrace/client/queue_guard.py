"""Back-pressure: a queue with a `max_length` refuses jobs beyond it. Its length is read once a second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from headrace.errors import QueueFull
from headrace.model.job import Batch, NewJob
from headrace.model.records import Enqueued
from headrace.policy.queue import QueueOptions
from headrace.store.contract import Store

FRESH = 1.0
"""Seconds for which a length counts, plus the jobs that this client has added meanwhile."""


class QueueGuard:
    """The bounded queues of one client."""

    def __init__(self, store: Store, queues: Mapping[str, QueueOptions]) -> None:
        self._store = store
        self._queues = queues
        self._known = 0
        self._bounds: dict[str, int] = {}
        self._looking = asyncio.Lock()
        self._looked = -FRESH
        self._lengths: Counter[str] = Counter()

    @property
    def bounds(self) -> Mapping[str, int]:
        """The `max_length` of every queue that has one."""
        if self._known != len(self._queues):  # Queues are added, never changed.
            self._known = len(self._queues)
            self._bounds = {
                name: options.max_length for name, options in self._queues.items() if options.max_length is not None
            }
        return self._bounds

    async def admit(self, jobs: Iterable[NewJob]) -> None:
        """Count these jobs, or raise QueueFull. Call it only if there are `bounds`, because it may read lengths."""
        bounds = self.bounds
        asked = Counter(job.lane.queue for job in jobs if job.lane.queue in bounds)
        if not asked:
            return
        if time.monotonic() - self._looked >= FRESH:
            async with self._looking:
                await self._look()
        for queue, count in asked.items():
            if self._lengths[queue] + count > bounds[queue]:
                raise QueueFull(queue, bounds[queue])
        self._lengths.update(asked)

    async def _look(self) -> None:
        if time.monotonic() - self._looked >= FRESH:  # Else another call did meanwhile.
            stats = await self._store.stats()
            self._lengths = Counter({figures.queue: figures.ready + figures.scheduled for figures in stats.queues})
            self._looked = time.monotonic()


class _Bounded:
    """A store whose `enqueue` respects the `max_length` of its queues. Every other verb is the store's own."""

    def __init__(self, store: Store, guard: QueueGuard) -> None:
        self._store = store
        self._guard = guard

    async def enqueue(self, batch: Batch) -> Enqueued:
        if self._guard.bounds:
            await self._guard.admit(batch.jobs)
        return await self._store.enqueue(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def bounded(store: Store, queues: Mapping[str, QueueOptions], *, guard: QueueGuard | None = None) -> Store:
    """The store for parts that enqueue by themselves (schedules, the outbox, Django): a full queue raises QueueFull."""
    return cast("Store", _Bounded(store, guard or QueueGuard(store, queues)))
