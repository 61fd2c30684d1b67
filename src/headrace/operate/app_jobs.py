"""The part of an app that looks at jobs and moves them. The first call of a verb imports what it needs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.client.app_clients import AppClients
from headrace.errors import ConfigError
from headrace.model.job import Job, JobId, JobState, parse_id
from headrace.runtime.blocking import blocking
from headrace.task.handle import Handle

if TYPE_CHECKING:
    from headrace.model.lease import Presence
    from headrace.model.records import CancelAnswer, Page, Stats
    from headrace.operate.jobs import JobOperations
    from headrace.policy.explain.answer import Explanation
    from headrace.task.task import Task
    from headrace.task.task_options import TaskOptions

JobRef = str | UUID | Handle[Any]
"""A job by its id or its handle."""
States = JobState | str | Iterable[JobState | str]


class AppJobs(AppClients):
    """What `Headrace` can do with jobs that are there already. Verbs come in two, `x` for sync code, `ax` for async code."""

    tasks: dict[str, Task[..., Any]]

    async def aget(self, job: JobRef) -> Job | None:
        """One job at this moment; None: there is none."""
        return (await (await self.clients.here()).get([id_of(job)]))[0]

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
        from headrace.model.records import Filter, Page
        from headrace.operate.search import Search

        where = Filter(
            states=_states(state), queue=queue, task=task, tenant=tenant, since=since, until=until, text=text
        )
        client = await self.clients.here()
        search = Search(client.store, self.tasks.get)
        page = await search.fill(where, before=None if before is None else id_of(before), limit=limit)
        return Page(page.jobs, page.next)

    find = blocking(afind)

    async def aexplain(self, job: JobRef) -> Explanation:
        """Why a job is not running and, where that can be known, when it will; raises JobNotFound."""
        return await (await self.clients.here()).explain(id_of(job), self._options_of, self.queues.get)

    explain = blocking(aexplain)

    def _options_of(self, task: str) -> TaskOptions | None:
        declared = self.tasks.get(task)
        return None if declared is None else declared.options

    async def astats(self) -> Stats:
        """Every queue in figures."""
        return await (await self.clients.here()).stats()

    stats = blocking(astats)

    async def aworkers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return await (await self.clients.here()).workers()

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
        from headrace.operate.audit import Ledger
        from headrace.operate.jobs import JobOperations

        client = await self.clients.here()
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
