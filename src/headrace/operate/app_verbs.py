"""The operator's part of an app: looking at jobs, stopping, repeating and pausing them. Verbs come in two, `x` and `ax`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from headrace.client.per_loop import Clients
from headrace.errors import ConfigError
from headrace.model.job import Job, JobId, JobState, parse_id
from headrace.model.lease import Presence
from headrace.model.records import CancelAnswer, Filter, Page, Pause, Stats
from headrace.operate.app_dead import JobRef
from headrace.operate.operations import Operations, Until, check_until, pausable
from headrace.policy.explain.explain import Explanation
from headrace.policy.queue import QueueOptions
from headrace.runtime.portal import Portal
from headrace.task.handle import Handle
from headrace.task.task import Task, TaskOptions

States = JobState | str | Iterable[JobState | str]


class AppOperator:
    """What `Headrace` can do with jobs that are there already."""

    _portal: Portal
    _clients: Clients
    tasks: dict[str, Task[..., Any]]
    queues: dict[str, QueueOptions]

    # ── looking ──────────────────────────────────────────────────────────────

    def get(self, job: JobRef) -> Job | None:
        """One job at this moment, None: there is none."""
        return self._portal.run(lambda: self.aget(job))

    async def aget(self, job: JobRef) -> Job | None:
        """One job at this moment, None: there is none."""
        return (await (await self._clients.here()).get([_id(job)]))[0]

    def find(
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
        """Jobs by filter, newest first; `page.next` given as `before` turns the page."""
        where = Filter(
            states=_states(state), queue=queue, task=task, tenant=tenant, since=since, until=until, text=text
        )
        return self._portal.run(lambda: self._afind(where, before, limit))

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
        """Jobs by filter, newest first; `page.next` given as `before` turns the page."""
        where = Filter(
            states=_states(state), queue=queue, task=task, tenant=tenant, since=since, until=until, text=text
        )
        return await self._afind(where, before, limit)

    async def _afind(self, where: Filter, before: JobRef | None, limit: int) -> Page:
        client = await self._clients.here()
        return await client.find(where, before=None if before is None else _id(before), limit=limit)

    def explain(self, job: JobRef) -> Explanation:
        """Why a job is not running and, where that can be known, when it will; raises JobNotFound."""
        return self._portal.run(lambda: self.aexplain(job))

    async def aexplain(self, job: JobRef) -> Explanation:
        """Why a job is not running and, where that can be known, when it will; raises JobNotFound."""
        return await (await self._clients.here()).explain(_id(job), self._options_of, self.queues.get)

    def _options_of(self, task: str) -> TaskOptions | None:
        found = self.tasks.get(task)
        return None if found is None else found.options

    def stats(self) -> Stats:
        """Every queue in figures."""
        return self._portal.run(self.astats)

    async def astats(self) -> Stats:
        """Every queue in figures."""
        return await (await self._clients.here()).stats()

    def workers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return self._portal.run(self.aworkers)

    async def aworkers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return await (await self._clients.here()).workers()

    # ── the operator's moves ─────────────────────────────────────────────────

    def cancel(self, *jobs: JobRef, reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        return self._portal.run(lambda: self.acancel(*jobs, reason=reason))

    async def acancel(self, *jobs: JobRef, reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        return await (await self._operations()).jobs.cancel(_ids(jobs), reason)

    def retry(self, *jobs: JobRef) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        return self._portal.run(lambda: self.aretry(*jobs))

    async def aretry(self, *jobs: JobRef) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        return await (await self._operations()).jobs.retry(_ids(jobs))

    def delete(self, *jobs: JobRef) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        return self._portal.run(lambda: self.adelete(*jobs))

    async def adelete(self, *jobs: JobRef) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        return await (await self._operations()).jobs.delete(_ids(jobs))

    def pause(
        self,
        queue: str | None = None,
        *,
        task: str | None = None,
        tenant: str | None = None,
        until: Until = None,
        by: str = "",
    ) -> None:
        """No job of this queue, task or tenant starts until then, or until it is resumed; what runs goes on.

        For a queue or a tenant that is so when this returns; workers notice the pause of a task within a second or two.
        `until`: so long from now, e.g. "2h", or an aware datetime. `by`: who pauses it, by default the user of this
        process.
        """
        self._portal.run(lambda: self.apause(queue, task=task, tenant=tenant, until=until, by=by))

    async def apause(
        self,
        queue: str | None = None,
        *,
        task: str | None = None,
        tenant: str | None = None,
        until: Until = None,
        by: str = "",
    ) -> None:
        """No job of this queue, task or tenant starts until then, or until it is resumed; see `pause`."""
        name, kind = pausable(queue, task, tenant)
        await (await self._operations(by)).pauses.pause(name, kind=kind, until=check_until(until))

    def resume(self, queue: str | None = None, *, task: str | None = None, tenant: str | None = None) -> None:
        """Undo `pause`."""
        self._portal.run(lambda: self.aresume(queue, task=task, tenant=tenant))

    async def aresume(self, queue: str | None = None, *, task: str | None = None, tenant: str | None = None) -> None:
        """Undo `pause`."""
        name, kind = pausable(queue, task, tenant)
        await (await self._operations()).pauses.resume(name, kind=kind)

    async def astop(self, job: JobId, reason: str | None) -> bool:
        """Cancel one job; False: it had ended. Raises JobNotFound."""
        return await (await self._operations()).jobs.stop(job, reason)

    async def _operations(self, by: str = "") -> Operations:
        client = await self._clients.here()
        return Operations(client.store, audit=client.audit, actor=by)

    def pauses(self) -> list[Pause]:
        """Everything that is paused now: what, by whom, since when and until when."""
        return self._portal.run(self.apauses)

    async def apauses(self) -> list[Pause]:
        """Everything that is paused now: what, by whom, since when and until when."""
        return await (await self._clients.here()).pauses()


def _id(job: JobRef) -> JobId:
    return job.id if isinstance(job, Handle) else parse_id(job)


def _ids(jobs: Sequence[JobRef]) -> list[JobId]:
    return [_id(job) for job in jobs]


def _states(given: States) -> frozenset[JobState]:
    names = [given] if isinstance(given, str) else list(given)
    try:
        return frozenset(JobState(name) for name in names)
    except ValueError:
        raise ConfigError(f"state = {given!r}: {', '.join(JobState)}") from None
