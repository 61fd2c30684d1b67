"""Cancel, retry and delete jobs; and the part of an app that looks at jobs and moves them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.client.per_loop import Clients
from headrace.client.results import not_found
from headrace.errors import ConfigError
from headrace.model.job import Job, JobId, JobState, parse_id
from headrace.model.lease import Presence
from headrace.model.records import CancelAnswer, Filter, Page, Progress, Retention, Stats
from headrace.operate.audit import Ledger, chosen, of_retention
from headrace.operate.dead import dropped
from headrace.operate.search import Search
from headrace.policy.queue import QueueOptions
from headrace.runtime.blocking import blocking
from headrace.store.contract import Store
from headrace.task.handle import Handle
from headrace.task.task import Task
from headrace.task.task_options import TaskOptions

if TYPE_CHECKING:
    from headrace.policy.explain.answer import Explanation

JobRef = str | UUID | Handle[Any]
"""A job by its id or its handle."""
States = JobState | str | Iterable[JobState | str]

_STOPPED = frozenset({CancelAnswer.CANCELLED, CancelAnswer.ASKED})


class JobOperations:
    """Moves of jobs by id. A move that changes no job leaves no entry in the audit log, unless it is part of `many`."""

    def __init__(self, store: Store, ledger: Ledger, *, many: bool = False) -> None:
        self._store = store
        self._ledger = ledger
        self._many = many

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        answers = await self._store.cancel(ids, reason)
        stopped = sum(answer in _STOPPED for answer in answers.values())
        await self._note("jobs.cancel", ids, stopped)
        return answers

    async def stop(self, id: JobId, reason: str | None) -> bool:
        """Cancel one job; False: it had ended. Raises JobNotFound."""
        answer = (await self.cancel([id], reason)).get(id, CancelAnswer.UNKNOWN)
        if answer is CancelAnswer.UNKNOWN:
            raise not_found(id)
        return answer is not CancelAnswer.FINISHED

    async def retry(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        moved = await self._store.retry(ids)
        await self._note("jobs.retry", ids, len(moved))
        return moved

    async def delete(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        gone = await dropped.delete(self._store, ids, by=self._ledger.actor)
        await self._note("jobs.delete", ids, len(gone))
        return gone

    async def prune(self, keep: Retention, progress: Progress | None = None) -> int:
        """Drop finished jobs past their retention now; answers how many."""
        gone, more = 0, True
        try:
            while more:
                pruned = await self._store.prune(keep)
                gone += pruned.jobs
                expired = await dropped.expire(self._store, keep, by=self._ledger.actor)
                gone, more = gone + expired.jobs, pruned.more or expired.more
                if progress is not None:
                    progress(gone, 0, "")
        finally:
            if gone:  # an interrupted call leaves its entry, too
                await self._ledger.note("jobs.prune", of_retention(keep), gone)
        return gone

    @asynccontextmanager
    async def many(self, what: str) -> AsyncGenerator[JobOperations]:
        """The same verbs for many pages of jobs: one entry for all of them."""
        async with self._ledger.summed(what) as ledger:
            yield JobOperations(self._store, ledger, many=True)

    async def _note(self, action: str, ids: Sequence[JobId], changed: int) -> None:
        if changed or self._many:
            await self._ledger.note(action, chosen(ids), changed)


# ── the app ──────────────────────────────────────────────────────────────────


class AppJobs:
    """What `Headrace` can do with jobs that are there already. Verbs come in two, `x` for sync code, `ax` for async code."""

    _clients: Clients
    tasks: dict[str, Task[..., Any]]
    queues: dict[str, QueueOptions]

    async def aget(self, job: JobRef) -> Job | None:
        """One job at this moment; None: there is none."""
        return (await (await self._clients.here()).get([id_of(job)]))[0]

    get = blocking(aget)

    async def afind(
        self,
        *,
        state: States = (),
        queue: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        before: JobRef | None = None,
        limit: int = 50,
    ) -> Page:
        """Jobs by filter, newest first; `page.next` given as `before` turns the page.

        `text`: a literal text in the task's name, the arguments, the key, the note, or a failure's kind or message. It is
        compared with the arguments as they may be shown, so masked values never match.
        """
        where = Filter(
            states=_states(state), queue=queue, task=task, tenant=tenant, since=since, until=until, text=text
        )
        client = await self._clients.here()
        search = Search(client.store, self.tasks.get)
        page = await search.fill(where, before=None if before is None else id_of(before), limit=limit)
        return Page(page.jobs, page.next)

    find = blocking(afind)

    async def aexplain(self, job: JobRef) -> Explanation:
        """Why a job is not running and, where that can be known, when it will; raises JobNotFound."""
        return await (await self._clients.here()).explain(id_of(job), self._options_of, self.queues.get)

    explain = blocking(aexplain)

    def _options_of(self, task: str) -> TaskOptions | None:
        declared = self.tasks.get(task)
        return None if declared is None else declared.options

    async def astats(self) -> Stats:
        """Every queue in figures."""
        return await (await self._clients.here()).stats()

    stats = blocking(astats)

    async def aworkers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return await (await self._clients.here()).workers()

    workers = blocking(aworkers)

    async def acancel(self, *jobs: JobRef, reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        return await (await self._jobs()).cancel(ids_of(jobs), reason)

    cancel = blocking(acancel)

    async def aretry(self, *jobs: JobRef) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        return await (await self._jobs()).retry(ids_of(jobs))

    retry = blocking(aretry)

    async def adelete(self, *jobs: JobRef) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        return await (await self._jobs()).delete(ids_of(jobs))

    delete = blocking(adelete)

    async def astop(self, job: JobId, reason: str | None) -> bool:
        """Cancel one job, for its handle; False: it had ended. Raises JobNotFound."""
        return await (await self._jobs()).stop(job, reason)

    async def _jobs(self) -> JobOperations:
        client = await self._clients.here()
        return JobOperations(client.store, Ledger.of(client.store, audit=client.audit))


def id_of(job: JobRef) -> JobId:
    """The id of a job that a user named; raises ConfigError."""
    return job.id if isinstance(job, Handle) else parse_id(job)


def ids_of(jobs: Iterable[JobRef]) -> list[JobId]:
    """The ids of several jobs."""
    return [id_of(job) for job in jobs]


def _states(given: States) -> frozenset[JobState]:
    names = [given] if isinstance(given, str) else list(given)
    try:
        return frozenset(JobState(name) for name in names)
    except ValueError:
        raise ConfigError(f"state = {given!r}: {', '.join(JobState)}") from None
