"""Dead letters of one store, grouped by the bugs that they died of.

Every look and every move reads the dead jobs page by page, newest first, and never holds more than a page of them. A job
that is replayed and dies again meanwhile is not met a second time, because pages only go down.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from headrace.errors import ConfigError, JobNotFound
from headrace.model.job import Job, JobId, JobState
from headrace.model.records import Filter, Page, Progress
from headrace.operate import shown
from headrace.operate.shown import TaskSource, unknown
from headrace.policy import fingerprint
from headrace.policy.fingerprint import Fingerprint
from headrace.store import pages
from headrace.store.contract import Store

PAGE = 250
"""Dead jobs read at once, each with every traceback."""
_DEAD = frozenset({JobState.DEAD})


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Dead jobs that died of one bug."""

    fingerprint: str
    """The name of the bug, for `replay` and `discard`."""
    title: str
    """The bug in one line, for display."""
    count: int
    """The number of dead jobs."""
    tasks: tuple[str, ...]
    """The tasks of these jobs."""
    queues: tuple[str, ...]
    """The queues of these jobs."""
    first_seen: datetime
    """When the first of them died."""
    last_seen: datetime
    """When the last of them died."""
    sample: JobId
    """The newest of them."""


class Letter(msgspec.Struct, frozen=True):
    """One dead job, with every failure, and the bug it died of."""

    job: Job
    """The job, with its failures in `history`."""
    fingerprint: str
    """The name of the bug, as its group has it."""
    title: str
    """The bug in one line, for display."""
    arguments: Any = None
    """As they may be shown, with secrets masked."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: these, or all that fit the filter and died of that bug."""

    ids: tuple[JobId, ...] = ()
    where: Filter = msgspec.field(default_factory=Filter)
    group: str | None = None

    @classmethod
    def of(
        cls,
        ids: Sequence[JobId] = (),
        *,
        group: str | None = None,
        where: Filter | None = None,
        everything: bool = False,
    ) -> Self:
        """Exactly one kind of choice, or a ConfigError: leaving an argument out never chooses everything."""
        narrowed = where is not None and replace(where, states=frozenset()) != Filter()
        if ids and (group is not None or narrowed or everything):
            raise ConfigError("give job ids, or a group and filters, not both")
        if not ids and group is None and not narrowed and not everything:
            raise ConfigError("which dead jobs? give ids, a group, a filter such as task, or everything=True")
        bug = None if group is None else fingerprint.check(group)
        return cls(ids=tuple(dict.fromkeys(ids)), where=where or Filter(), group=bug)


class DeadLetters:
    """The dead letters of one store."""

    def __init__(self, store: Store, task_of: TaskSource = unknown) -> None:
        """`task_of` finds a task by its name; it says what to mask, and when its jobs are too late."""
        self._store = store
        self._task_of = task_of

    async def groups(self, where: Filter | None = None, progress: Progress | None = None) -> list[Group]:
        """The bugs behind the dead jobs that fit, the most frequent first."""
        choice = Choice(where=where or Filter())
        meter = ProgressCount(progress, await self._expected(choice))
        by_fingerprint: dict[str, Group] = {}
        async for dead, _ in self._pages(choice, whole=True):
            for job in dead:
                join(by_fingerprint, job, fingerprint.of_job(job))
            meter.add(len(dead))
        return most_frequent(by_fingerprint)

    async def jobs(
        self, where: Filter | None = None, *, group: str | None = None, before: JobId | None = None, limit: int = 50
    ) -> Page:
        """Dead jobs, newest first; with a group, those that died of that bug."""
        where = replace(where or Filter(), states=_DEAD)
        if group is None:
            return await pages.fill(self._store, where, before=before, limit=limit)
        choice = Choice(where=where, group=fingerprint.check(group))
        jobs: list[Job] = []
        async for dead, _ in self._pages(choice, whole=True, before=before):
            jobs += dead
            if len(jobs) > limit:
                return Page(jobs[:limit], jobs[limit - 1].id)
        return Page(jobs, None)

    async def show(self, id: JobId) -> Letter:
        """One dead job; raises JobNotFound."""
        (job,) = await self._store.get([id])
        if job is None:
            raise JobNotFound(f"no job {id}: it was pruned, discarded or never there")
        if job.state is not JobState.DEAD:
            raise JobNotFound(f"job {id} is {job.state}, not dead")
        return Letter(job, *fingerprint.of_job(job), self._arguments(job))

    def _arguments(self, job: Job) -> dict[str, Any]:
        return shown.arguments(self._task_of(job.task), job)

    async def _pages(
        self, choice: Choice, *, whole: bool, before: JobId | None = None
    ) -> AsyncIterator[tuple[list[Job], list[JobId]]]:
        """The chosen dead jobs, and the given ids that are not dead. `whole`: with their failures."""
        if choice.ids:
            for start in range(0, len(choice.ids), PAGE):
                some = choice.ids[start : start + PAGE]
                dead = [job for job in await self._store.get(some) if job is not None and job.state is JobState.DEAD]
                there = {job.id for job in dead}
                yield dead, [id for id in some if id not in there]
            return
        where = replace(choice.where, states=_DEAD)
        while True:
            page = await self._store.find(where, before=before, limit=PAGE)
            jobs = page.jobs
            if whole and jobs:
                # A job that was replayed between the two calls is no longer dead.
                stored = await self._store.get([job.id for job in jobs])
                jobs = [job for job in stored if job is not None and job.state is JobState.DEAD]
            if choice.group is not None:
                jobs = [job for job in jobs if fingerprint.of_job(job).id == choice.group]
            yield jobs, []
            if page.next is None:
                return
            before = page.next

    async def _expected(self, choice: Choice) -> int:
        """How many jobs will be met, where that is known without counting; 0: unknown."""
        if choice.ids:
            return len(choice.ids)
        where = choice.where
        if choice.group is not None or replace(where, states=frozenset(), queue=None) != Filter():
            return 0
        return sum(queue.dead for queue in (await self._store.stats()).queues if where.queue in {None, queue.queue})


class ProgressCount:
    """Tells the caller's `progress` function how far a call is, if there is one."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._what = ""

    def add(self, count: int) -> None:
        self._done += count
        self._show()

    def say(self, what: str) -> None:
        self._what = what
        self._show()

    def _show(self) -> None:
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done) if self._total else 0, self._what)


def join(groups: dict[str, Group], job: Job, bug: Fingerprint) -> None:
    """Count a dead job in the group of its bug."""
    died = job.finished_at or job.enqueued_at
    group = groups.get(bug.id)
    if group is None:
        groups[bug.id] = Group(
            fingerprint=bug.id,
            title=bug.title,
            count=1,
            tasks=(job.task,),
            queues=(job.queue,),
            first_seen=died,
            last_seen=died,
            sample=job.id,
        )
        return
    groups[bug.id] = replace(
        group,
        count=group.count + 1,
        tasks=group.tasks if job.task in group.tasks else tuple(sorted({*group.tasks, job.task})),
        queues=group.queues if job.queue in group.queues else tuple(sorted({*group.queues, job.queue})),
        first_seen=min(group.first_seen, died),
        last_seen=max(group.last_seen, died),
    )


def most_frequent(groups: Mapping[str, Group]) -> list[Group]:
    """The groups, the most frequent bug first."""
    return sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint))
