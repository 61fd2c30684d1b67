"""The timetable: what `app.schedules` is. Verbs come in two, `x` for sync code, `ax` for async code."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.per_loop import Clients
from headrace.errors import ConfigError
from headrace.model.duration import Duration
from headrace.model.job import JobId
from headrace.operate.operations import Operations
from headrace.operate.schedules import ScheduleOperations
from headrace.operate.stored_schedules import ScheduleEntry, Schedules
from headrace.policy import schedule as rules
from headrace.policy.schedule import Schedule
from headrace.runtime.portal import Portal
from headrace.task.task import JobCall


def declare(
    name: str,
    *,
    cron: str | None,
    every: Duration | None,
    tz: str,
    job: JobCall[object],
    overlap: str,
    catch_up: str,
    jitter: Duration | None,
) -> Schedule:
    """A checked schedule from what the user wrote."""
    if not isinstance(job, JobCall):
        raise ConfigError(f"schedule {name!s:.63}: job = {job!r:.80}: write job=task.job(…)")
    return rules.declare(
        name,
        cron=cron,
        every=every,
        tz=tz,
        job=job.job,
        overlap=overlap,
        catch_up=catch_up,
        jitter=jitter,
    )


class AppSchedules:
    """Schedules as the store has them, changed at run time."""

    def __init__(self, portal: Portal, clients: Clients) -> None:
        self._portal = portal
        self._clients = clients
        self.declared: dict[str, Schedule] = {}
        """Those of `app.schedule(…)`, stored when a worker starts."""

    def list(self) -> Mapping[str, ScheduleEntry]:
        """Every schedule by name, with its next slot and what became of the last ones."""
        return self._portal.run(self.alist)

    async def alist(self) -> Mapping[str, ScheduleEntry]:
        """Every schedule by name, with its next slot and what became of the last ones."""
        return await Schedules((await self._clients.here()).store).all()

    def add(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        job: JobCall[object],
        overlap: str = "allow",
        catch_up: str = "last",
        jitter: Duration | None = None,
        replace: bool = False,
    ) -> ScheduleEntry:
        """Store a schedule now; running workers notice."""
        made = declare(name, cron=cron, every=every, tz=tz, job=job, overlap=overlap, catch_up=catch_up, jitter=jitter)
        return self._portal.run(lambda: self._add(made, replace=replace))

    async def aadd(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        job: JobCall[object],
        overlap: str = "allow",
        catch_up: str = "last",
        jitter: Duration | None = None,
        replace: bool = False,
    ) -> ScheduleEntry:
        """Store a schedule now; running workers notice."""
        made = declare(name, cron=cron, every=every, tz=tz, job=job, overlap=overlap, catch_up=catch_up, jitter=jitter)
        return await self._add(made, replace=replace)

    async def _add(self, schedule: Schedule, *, replace: bool) -> ScheduleEntry:
        return await (await self._operations()).add(schedule, replace=replace)

    def pause(self, name: str, *, by: str = "") -> None:
        """No slot fires until it is resumed; declaring it anew changes nothing about that."""
        self._portal.run(lambda: self.apause(name, by=by))

    async def apause(self, name: str, *, by: str = "") -> None:
        """No slot fires until it is resumed; declaring it anew changes nothing about that."""
        await (await self._operations(by)).pause(name)

    def resume(self, name: str) -> None:
        """Undo `pause`; what came meanwhile is not caught up."""
        self._portal.run(lambda: self.aresume(name))

    async def aresume(self, name: str) -> None:
        """Undo `pause`; what came meanwhile is not caught up."""
        await (await self._operations()).resume(name)

    def run_now(self, name: str) -> JobId:
        """Make its job now, outside of any slot."""
        return self._portal.run(lambda: self.arun_now(name))

    async def arun_now(self, name: str) -> JobId:
        """Make its job now, outside of any slot."""
        return await (await self._operations()).run_now(name)

    def remove(self, name: str) -> None:
        """Forget a schedule; one that code declares comes back with the next worker that starts."""
        self._portal.run(lambda: self.aremove(name))

    async def aremove(self, name: str) -> None:
        """Forget a schedule; one that code declares comes back with the next worker that starts."""
        await (await self._operations()).remove(name)

    async def _operations(self, by: str = "") -> ScheduleOperations:
        client = await self._clients.here()
        return Operations(client.bounded, audit=client.audit, actor=by).schedules
