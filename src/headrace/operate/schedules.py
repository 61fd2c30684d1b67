"""Add, pause, resume, run and remove schedules at run time."""

from __future__ import annotations

from headrace.model.job import JobId
from headrace.operate.ledger import Ledger, of_schedule
from headrace.operate.stored_schedules import ScheduleEntry, Schedules
from headrace.policy.schedule import Schedule
from headrace.store.contract import Store


class ScheduleOperations:
    """Changes of schedules; see `Schedules` for what each does."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._schedules = Schedules(store)
        self._ledger = ledger

    async def add(self, schedule: Schedule, *, replace: bool = False) -> ScheduleEntry:
        """Store a schedule."""
        entry = await self._schedules.add(schedule, replace=replace)
        await self._ledger.note("schedules.add", of_schedule(schedule))
        return entry

    async def pause(self, name: str) -> ScheduleEntry:
        """No slot fires until it is resumed."""
        entry = await self._schedules.pause(name, by=self._ledger.actor)
        await self._ledger.note("schedules.pause", name)
        return entry

    async def resume(self, name: str) -> ScheduleEntry:
        """Undo `pause`."""
        entry = await self._schedules.resume(name)
        await self._ledger.note("schedules.resume", name)
        return entry

    async def run_now(self, name: str) -> JobId:
        """Make its job now."""
        made = await self._schedules.run_now(name)
        await self._ledger.note("schedules.run_now", name, 1)
        return made

    async def remove(self, name: str) -> bool:
        """Forget a schedule. True: code declares it, so it comes back with the next worker."""
        declared = await self._schedules.remove(name)
        await self._ledger.note("schedules.remove", name)
        return declared
