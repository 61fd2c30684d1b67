"""Held jobs: blocked ones that do not run before a dead letter is replayed. A look costs the same, however many jobs there are."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from headrace.model.gate import Needs
from headrace.model.job import Job, JobId, JobState
from headrace.model.records import Filter, Stats
from headrace.store.contract import Store

DEAD_LETTERS: Final = 50
"""Dead letters that one look reads, the newest first."""
EACH: Final = 100
"""Jobs that wait for one of them, or for its group, that are counted."""


class HeldJobs(msgspec.Struct, kw_only=True):
    """The held jobs of one queue."""

    count: int = 0
    since: datetime | None = None
    """When the first of the jobs that hold them died."""


class HeldFigures(msgspec.Struct, frozen=True):
    """The held jobs by queue."""

    queues: dict[str, HeldJobs] = {}
    at_least: bool = False
    """There are more dead letters than were read, or more jobs wait for one of them than were counted."""


async def look(store: Store, stats: Stats) -> HeldFigures:
    """The jobs that wait for a dead job, or for a group with one, until all are done.

    Jobs that wait for these in turn are not counted. A store without blocked or dead jobs is not asked.
    """
    if not any(queue.blocked for queue in stats.queues) or not any(queue.dead for queue in stats.queues):
        return HeldFigures()
    page = await store.find(Filter(states=frozenset({JobState.DEAD})), limit=DEAD_LETTERS)
    walk = _HeldLook(store)
    for dead in page.jobs:
        await walk.visit(dead)
    return HeldFigures(walk.queues, at_least=page.next is not None or walk.more)


class _HeldLook:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[UUID] = set()
        self.queues: dict[str, HeldJobs] = {}
        self.more = False

    async def visit(self, dead: Job) -> None:
        links = await self._store.links(dead.id, limit=EACH)
        await self._count(dead, dead.id, links.blocked)
        gates = list(links.into)
        read = 0
        while read < min(len(gates), EACH):
            around = await self._store.links(gates[read], limit=EACH)
            await self._count(dead, gates[read], around.blocked)
            gates += [gate for gate in around.into if gate not in gates]
            read += 1
        self.more = self.more or len(gates) > EACH

    async def _count(self, dead: Job, gate: UUID, blocked: tuple[UUID, ...]) -> None:
        self.more = self.more or len(blocked) == EACH
        for job in await self._store.get([JobId(id) for id in blocked]) if blocked else []:
            if job is None or not any(wait.gate == gate and wait.needs is Needs.DONE for wait in job.waits):
                continue  # It waits until the group has ended in any way.
            held = self.queues.setdefault(job.queue, HeldJobs())
            held.since = min(filter(None, (held.since, dead.finished_at)), default=None)
            held.count += job.id not in self._seen
            self._seen.add(job.id)
