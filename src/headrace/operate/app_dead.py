"""The dead letters' desk: what `app.dead` is. Verbs come in two, `x` for sync code, `ax` for async code."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID

from headrace.client.per_loop import Clients
from headrace.model import duration
from headrace.model.job import Job, JobId, parse_id
from headrace.model.rate import parse as parse_rate
from headrace.model.records import Filter, Progress
from headrace.operate import shown
from headrace.operate.dead_letters import Choice, DeadLetters, Discarded, Group, Letter, Replayed
from headrace.operate.operations import Operations
from headrace.policy.canary import Canary
from headrace.runtime.portal import Portal
from headrace.store.contract import Store
from headrace.task.handle import Handle
from headrace.task.task import Task, TaskOptions

JobRef = str | UUID | Handle[Any]
"""A job by its id or its handle."""


class DeadLetterFilter(TypedDict, total=False):
    """Which dead jobs: everything given must hold."""

    queue: str
    task: str
    tenant: str
    since: datetime
    """Enqueued at or after."""
    until: datetime
    """Enqueued before."""
    text: str
    """In the task's name, the note, or a failure's kind or message."""


class AppDeadLetters:
    """Dead letters: grouped by bug, replayed with care, discarded with a record."""

    def __init__(self, portal: Portal, clients: Clients, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._portal = portal
        self._clients = clients
        self._tasks = tasks

    def groups(self, *, progress: Progress | None = None, **where: Unpack[DeadLetterFilter]) -> list[Group]:
        """The bugs behind the dead jobs, the most frequent first. `progress(done, total, what)` hears how far it is."""
        return self._portal.run(lambda: self.agroups(progress=progress, **where))

    async def agroups(self, *, progress: Progress | None = None, **where: Unpack[DeadLetterFilter]) -> list[Group]:
        """The bugs behind the dead jobs, the most frequent first. `progress(done, total, what)` hears how far it is."""
        return await (await self._letters()).groups(Filter(**where), progress)

    def show(self, job: JobRef) -> Letter:
        """One dead job with every failure, its arguments masked; raises JobNotFound."""
        return self._portal.run(lambda: self.ashow(job))

    async def ashow(self, job: JobRef) -> Letter:
        """One dead job with every failure, its arguments masked; raises JobNotFound."""
        return await (await self._letters()).show(_id(job))

    def replay(
        self,
        *jobs: JobRef,
        group: str | None = None,
        everything: bool = False,
        rate: str | None = None,
        canary: int | None = None,
        tolerate: float = 0.1,
        patience: duration.Duration = "10m",
        progress: Progress | None = None,
        **where: Unpack[DeadLetterFilter],
    ) -> Replayed:
        """Make dead jobs ready again: by id, by group (a fingerprint), by filter, or everything.

        `rate="50/s"` bounds the pace. `canary=10` replays ten, watches them to their end, and goes on only if not more
        than the share `tolerate` died again; `answer.stopped` says why not. Jobs whose `expires` or `deadline` has passed
        stay dead: `answer.late`.
        """
        return self._portal.run(
            lambda: self.areplay(
                *jobs,
                group=group,
                everything=everything,
                rate=rate,
                canary=canary,
                tolerate=tolerate,
                patience=patience,
                progress=progress,
                **where,
            )
        )

    async def areplay(
        self,
        *jobs: JobRef,
        group: str | None = None,
        everything: bool = False,
        rate: str | None = None,
        canary: int | None = None,
        tolerate: float = 0.1,
        patience: duration.Duration = "10m",
        progress: Progress | None = None,
        **where: Unpack[DeadLetterFilter],
    ) -> Replayed:
        """Make dead jobs ready again; see `replay`."""
        choice = Choice.of([_id(job) for job in jobs], group=group, where=Filter(**where), everything=everything)
        pace, first = care(rate=rate, canary=canary, tolerate=tolerate, patience=patience)
        return await (await self._operations()).dead.replay(choice, rate=pace, canary=first, progress=progress)

    def discard(
        self,
        *jobs: JobRef,
        reason: str,
        by: str = "",
        group: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **where: Unpack[DeadLetterFilter],
    ) -> Discarded:
        """Delete dead jobs for good, each with a line in the log `headrace.audit`: by id, group, filter, or everything."""
        return self._portal.run(
            lambda: self.adiscard(
                *jobs, reason=reason, by=by, group=group, everything=everything, progress=progress, **where
            )
        )

    async def adiscard(
        self,
        *jobs: JobRef,
        reason: str,
        by: str = "",
        group: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **where: Unpack[DeadLetterFilter],
    ) -> Discarded:
        """Delete dead jobs for good; see `discard`."""
        choice = Choice.of([_id(job) for job in jobs], group=group, where=Filter(**where), everything=everything)
        return await (await self._operations(by)).dead.discard(choice, reason=reason, progress=progress)

    async def _letters(self) -> DeadLetters:
        return self._of((await self._clients.here()).store)

    async def _operations(self, by: str = "") -> Operations:
        client = await self._clients.here()
        return Operations(client.store, audit=client.audit, actor=by, letters=self._of)

    def _of(self, store: Store) -> DeadLetters:
        return DeadLetters(store, arguments=self._arguments, options_of=self._options_of)

    def _arguments(self, job: Job) -> dict[str, Any]:
        return shown.arguments(self._tasks.get(job.task), job)

    def _options_of(self, name: str) -> TaskOptions | None:
        task = self._tasks.get(name)
        return None if task is None else task.options


def care(
    *, rate: str | None, canary: int | None, tolerate: float, patience: duration.Duration
) -> tuple[float | None, Canary | None]:
    """How carefully to replay, from what a user wrote: jobs per second, and canaries."""
    pace = None if rate is None else parse_rate(rate)
    if canary is None:
        return pace, None
    return pace, Canary(canary, tolerate, duration.parse(patience, name="patience"))


def _id(job: JobRef) -> JobId:
    return job.id if isinstance(job, Handle) else parse_id(job)
