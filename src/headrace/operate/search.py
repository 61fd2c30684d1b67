"""Find jobs by a text, and count the jobs that a filter matches: a bounded amount of work per call.

A store keeps arguments as bytes and does not know which of them a task masks. So the text is compared here, with the
arguments as a reader may see them. A masked value therefore never matches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from headrace.model.job import FINISHED, Job, JobId, JobState
from headrace.model.records import Filter, Page
from headrace.operate import shown
from headrace.operate.shown import TaskSource
from headrace.store.contract import Store

LOOK = 2_000
"""Jobs that one call compares with a text, or counts."""
TOP = 20
"""Queues, tasks and tenants that a count names."""
_STEP = 250
"""Jobs that are read at once, with their arguments."""
_CALLS = 50
"""Calls of `find` in one search. A store may pass over many jobs that do not fit, and answer a short page."""
_FAILURES = 100
"""Jobs whose failures are read at once: tracebacks may be long."""
_COUNTED = frozenset({JobState.READY, JobState.SCHEDULED, JobState.BLOCKED, JobState.RUNNING, JobState.DEAD})
"""States whose number each queue keeps."""


def after(seconds: float) -> Callable[[], bool]:
    """Answers whether so many seconds have passed since this call."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


class PageSource(Protocol):
    """`find` of a store, or of what one caller may see of it."""

    def __call__(self, where: Filter, *, before: JobId | None, limit: int) -> Awaitable[Page]: ...


class SearchPage(msgspec.Struct, frozen=True):
    """Jobs, newest id first, and how many were looked at for them."""

    jobs: list[Job]
    next: JobId | None
    """Pass as `before` to go on, also after a short or empty page; None: this was the last."""
    looked_at: int


class JobCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs match, and of which kinds they are."""

    count: int
    """The jobs that were read and match, or all that match if `exact`."""
    exact: bool
    """Whether `count` is the number of all jobs that match."""
    looked_at: int
    """The jobs that were read."""
    states: dict[str, int]
    """The jobs that were read and match, by state."""
    queues: dict[str, int]
    """The same by queue, the most frequent first, at most TOP."""
    tasks: dict[str, int]
    tenants: dict[str, int]
    next: JobId | None
    """Pass as `before` to count on; None: no job is left."""

    def with_more(self, more: JobCount) -> JobCount:
        """This count and that of the jobs after it."""
        return JobCount(
            count=self.count + more.count,
            exact=more.exact,
            looked_at=self.looked_at + more.looked_at,
            states=_sum(self.states, more.states),
            queues=_sum(self.queues, more.queues),
            tasks=_sum(self.tasks, more.tasks),
            tenants=_sum(self.tenants, more.tenants),
            next=more.next,
        )


class Search:
    """Searches the jobs of one store, or those of it that one caller may see."""

    def __init__(
        self, store: Store, task_of: TaskSource, find: PageSource | None = None, *, within: float = inf
    ) -> None:
        """`task_of` finds a task by its name, because the task says what to mask. `within`: see `page`."""
        self._store = store
        self._task_of = task_of
        self._find: PageSource = find or store.find
        self._within = within

    async def page(
        self, where: Filter, *, before: JobId | None = None, limit: int = 50, look: int = LOOK
    ) -> SearchPage:
        """Up to `limit` jobs that match, of at most about `look` that are read. Without a text it is one call of the store.

        When `within` seconds have passed, no further call of the store is made: how many jobs one call looks at is up to the store.
        """
        if where.text is None:
            page = await self._find(where, before=before, limit=limit)
            return SearchPage(page.jobs, page.next, len(page.jobs))
        jobs: list[Job] = []
        looked = calls = 0
        over = after(self._within)
        while True:
            page = await self._find(replace(where, text=None), before=before, limit=min(_STEP, look - looked))
            looked, calls = looked + len(page.jobs), calls + 1
            jobs += await self._mentioning(page.jobs, where.text)
            if len(jobs) > limit:
                return SearchPage(jobs[:limit], jobs[limit - 1].id, looked)
            before = page.next
            if before is None or looked >= look or calls >= _CALLS or over():
                return SearchPage(jobs, before, looked)

    async def fill(
        self,
        where: Filter,
        *,
        before: JobId | None = None,
        limit: int = 50,
        most: int | None = None,
    ) -> SearchPage:
        """A page of `limit` jobs, or of all that are left. `most`: how many jobs are looked at, about."""
        jobs: list[Job] = []
        looked = 0
        while True:
            page = await self.page(where, before=before, limit=limit - len(jobs))
            jobs, looked, before = jobs + page.jobs, looked + page.looked_at, page.next
            if before is None or len(jobs) >= limit or (most is not None and looked >= most):
                return SearchPage(jobs, before, looked)

    async def count(
        self, where: Filter, *, before: JobId | None = None, look: int = LOOK, figures: bool = False
    ) -> JobCount:
        """Count jobs, of at most about `look` that are read. `figures`: those of the queues may say the number of all."""
        kinds = tuple(Counter[str]() for _ in range(4))
        looked = calls = 0
        first = before is None
        over = after(self._within)
        while True:
            step = min(_STEP if where.text is not None else 1000, look - looked)
            page = await self._find(replace(where, text=None), before=before, limit=step)
            looked, calls, before = looked + len(page.jobs), calls + 1, page.next
            jobs = page.jobs if where.text is None else await self._mentioning(page.jobs, where.text)
            for job in jobs:
                for kind, name in zip(kinds, (job.state.value, job.queue, job.task, job.tenant), strict=True):
                    kind[name] += 1
            if before is None or looked >= look or calls >= _CALLS or over():
                break
        states, queues, tasks, tenants = kinds
        known = await self._known(where) if figures and before is not None else None
        return JobCount(
            count=states.total() if known is None else known,
            exact=known is not None or (before is None and first),
            looked_at=looked,
            states=dict(states.most_common()),
            queues=dict(queues.most_common(TOP)),
            tasks=dict(tasks.most_common(TOP)),
            tenants=dict(tenants.most_common(TOP)),
            next=before,
        )

    async def _known(self, where: Filter) -> int | None:
        """How many jobs match, where the figures of the queues say it; None: they do not."""
        if replace(where, states=frozenset(), queue=None) != Filter() or not where.states:
            return None
        if where.states & (FINISHED - {JobState.DEAD}) or not where.states <= _COUNTED:
            return None
        figures = [queue for queue in (await self._store.stats()).queues if where.queue in {None, queue.queue}]
        counts: list[int] = [getattr(queue, state.value) for queue in figures for state in where.states]
        return sum(counts)

    async def _mentioning(self, jobs: Sequence[Job], text: str) -> list[Job]:
        """Those of these jobs that have the text in what a reader may see of them."""
        matches: set[JobId] = set()
        failed: list[JobId] = []
        for job in jobs:
            if any(text in part for part in self._texts(job)):
                matches.add(job.id)
            elif _may_have_failed(job):
                failed.append(job.id)
        for start in range(0, len(failed), _FAILURES):
            stored = await self._store.get(failed[start : start + _FAILURES])
            matches |= {
                job.id
                for job in stored
                if job is not None and any(text in why.kind or text in why.message for why in job.history)
            }
        return [job for job in jobs if job.id in matches]

    def _texts(self, job: Job) -> Iterator[str]:
        yield job.task
        yield job.note or ""
        yield shown.key(job) or ""
        task = self._task_of(job.task)
        arguments = shown.arguments(task, job)
        names = () if task is None else task.codec.names
        for name, value in zip_longest(names[: len(arguments["args"])], arguments["args"], fillvalue=""):
            yield from _values(value, name)
        yield from _values(arguments["kwargs"])


def _sum(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return dict((Counter(counts) + Counter(more)).most_common(TOP))


_JSON_WORDS = {None: "null", True: "true", False: "false"}


def _may_have_failed(job: Job) -> bool:
    if job.failures or job.crashes or job.attempt > 1:
        return True
    # A job that was retried by hand keeps its failures and counts them from 0.
    return job.attempt == 1 and job.state not in {JobState.DONE, JobState.RUNNING}


def _values(value: Any, name: str = "") -> Iterator[str]:
    """Each value as `name=value`, where it has a name, so that a text may name the field."""
    if isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _values(inner, str(key))  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list | tuple):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _values(inner, name)
    else:
        text = _JSON_WORDS.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)
        yield f"{name}={text}" if name else text
