"""Pause and resume a queue, a task or a tenant."""

from __future__ import annotations

from datetime import datetime, timedelta

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import JobId, JobState
from headrace.model.lane import check_queue, check_task_name, check_tenant
from headrace.model.outcome import PAUSED
from headrace.model.records import Filter, PauseKind
from headrace.operate.audit import Ledger
from headrace.store.contract import Store

Until = duration.Duration | datetime | None
"""So long from now, a time, or for good."""
_PAGE = 1000


class PauseOperations:
    """Pauses of one store."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def pause(
        self, name: str, *, kind: PauseKind = "queue", until: timedelta | datetime | None = None
    ) -> datetime | None:
        """No job of this queue or tenant starts after this returns; of a task none within a second or two.

        Answers when the pause ends by the store's clock; None: when it is resumed.
        """
        end = await self._end(until)
        await self._store.pause(name, kind=kind, by=self._ledger.actor, until=end)
        await self._ledger.note(f"{kind}s.pause", name)
        return end

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        """Undo `pause`; jobs that workers put off because of it are due at once."""
        await self._store.resume(name, kind=kind)
        await self._ledger.note(f"{kind}s.resume", name)
        if kind == "task":
            await self._bring_forward(name)

    async def _end(self, until: timedelta | datetime | None) -> datetime | None:
        if until is None:
            return None
        now = await self._store.now()
        end = now + until if isinstance(until, timedelta) else until
        if end <= now:
            raise ConfigError(f"until = {end.isoformat(timespec='seconds')} has passed: nothing would be paused")
        return end

    async def _bring_forward(self, task: str) -> None:
        where = Filter(states=frozenset({JobState.SCHEDULED}), task=task, text=PAUSED)
        before: JobId | None = None
        while True:
            page = await self._store.find(where, before=before, limit=_PAGE)
            put_off = [job.id for job in page.jobs if job.note is not None and job.note.startswith(PAUSED)]
            if put_off:
                await self._store.retry(put_off, afresh=False)
            if page.next is None:
                return
            before = page.next


def pausable(queue: str | None, task: str | None, tenant: str | None) -> tuple[str, PauseKind]:
    """What to pause or resume, from what was given: exactly one of them."""
    given: list[tuple[str, PauseKind]] = []
    if queue is not None:
        given.append((check_queue(queue), "queue"))
    if task is not None:
        given.append((check_task_name(task), "task"))
    if tenant is not None:
        given.append((_named(tenant), "tenant"))
    if len(given) != 1:
        raise ConfigError("pause and resume take one of queue, task and tenant at a time")
    return given[0]


def _named(tenant: str) -> str:
    if not check_tenant(tenant):
        raise ConfigError("tenant = '': no tenant is named; pause the queue or the task of jobs without a tenant")
    return tenant


def check_until(until: Until) -> timedelta | datetime | None:
    """When a pause ends, or a ConfigError."""
    if until is None:
        return None
    if not (end := duration.given_or_time(until, name="until", example="2h")):
        raise ConfigError(f"until = {until!r}: must be more than 0")
    return end
