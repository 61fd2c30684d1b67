"""Schedules in a store: what workers declare, what operators change, and `app.schedules`.

`policy/schedule_entry.py` decides which slots fire, and says why that is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final, Unpack

from msgspec.structs import replace

from headrace.client.per_loop import Clients
from headrace.errors import ConfigError, ScheduleNotFound
from headrace.model.job import Batch, JobId, job_id, new_batch
from headrace.model.records import Record
from headrace.operate.audit import Ledger, of_schedule
from headrace.policy import schedule as rules
from headrace.policy.schedule import Schedule, job_now
from headrace.policy.schedule_entry import (
    REMEMBERED,
    UNIQUE,
    Decision,
    ScheduleEntry,
    encode,
    fingerprint,
    read,
    redefined,
)
from headrace.policy.schedule_options import ScheduleKeywords
from headrace.runtime.blocking import blocking
from headrace.store.contract import Store
from headrace.task.call import JobCall

log = logging.getLogger("headrace.schedules")

KIND: Final = "schedule"
_TRIES: Final = 100


def decode(name: str, record: Record) -> ScheduleEntry | None:
    """The entry; None, with a line in the log: it cannot be read, perhaps because a newer version wrote it."""
    try:
        return read(name, record.value)
    except ConfigError as error:
        log.warning("schedule %s cannot be read and does not tick: %s; update headrace, or remove it", name, error)
        return None


class Schedules:
    """The schedules of one store, as workers read and declare them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> dict[str, ScheduleEntry]:
        """Every schedule by name."""
        records = await self._store.records(KIND)
        return {name: entry for name, record in records.items() if (entry := decode(name, record)) is not None}

    async def declare(self, declared: Mapping[str, Schedule], *, app: str, tasks: Collection[str]) -> list[str]:
        """Store what code declares, where it has changed; answers the names that code declared before and no longer does."""
        entries = await self.all()
        for name, schedule in declared.items():
            known = entries.get(name)
            if known is not None and known.digest == fingerprint(schedule):
                continue  # a change at run time stays
            if known is not None and known.declared and _elsewhere(known, app, tasks):
                _warn(known, schedule, app)

            def change(entry: ScheduleEntry | None, now: datetime, schedule: Schedule = schedule) -> ScheduleEntry:
                fresh = (
                    ScheduleEntry(schedule=schedule, cursor=now) if entry is None else redefined(entry, schedule, now)
                )
                return replace(fresh, digest=fingerprint(schedule), app=app)

            await self._change(name, change)
        return [
            name
            for name, entry in entries.items()
            if entry.declared
            and name not in declared
            and (entry.schedule.job.task in tasks or (app and entry.app == app))
        ]

    async def _change(
        self, name: str, change: Callable[[ScheduleEntry | None, datetime], ScheduleEntry]
    ) -> ScheduleEntry:
        """Read, change and write; read again when another process wrote first."""
        for _ in range(_TRIES):
            version, entry = await self._look(name)
            changed = change(entry, await self._store.now())
            if changed == entry or await self._store.record(KIND, name, encode(changed), version) is not None:
                return changed
        raise _contested(name)

    async def _look(self, name: str) -> tuple[int | None, ScheduleEntry | None]:
        record = (await self._store.records(KIND)).get(name)
        return (None, None) if record is None else (record.version, decode(name, record))


class ScheduleOperations(Schedules):
    """The schedules of one store, as an operator changes them: each change leaves an entry in the audit log."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        super().__init__(store)
        self._ledger = ledger

    async def add(self, schedule: Schedule, *, replace: bool = False) -> ScheduleEntry:
        """Store a schedule; one of that name is a ConfigError unless it is to be replaced."""

        def change(entry: ScheduleEntry | None, now: datetime) -> ScheduleEntry:
            if entry is None:
                return ScheduleEntry(schedule=schedule, cursor=now)
            if not replace:
                raise ConfigError(f"there is a schedule {schedule.name} already: remove it first, or replace it")
            return redefined(entry, schedule, now)

        entry = await self._change(schedule.name, change)
        await self._ledger.note("schedules.add", of_schedule(schedule))
        return entry

    async def pause(self, name: str) -> ScheduleEntry:
        """No slot fires until it is resumed."""
        by = self._ledger.actor
        entry = await self._change_known(name, lambda entry, _: replace(entry, paused=True, paused_by=by))
        await self._ledger.note("schedules.pause", name)
        return entry

    async def resume(self, name: str) -> ScheduleEntry:
        """Undo `pause`; slots that came meanwhile are not caught up."""
        entry = await self._change_known(
            name,
            lambda entry, now: replace(entry, paused=False, paused_by="", cursor=now) if entry.paused else entry,
        )
        await self._ledger.note("schedules.resume", name)
        return entry

    async def remove(self, name: str) -> bool:
        """Forget a schedule; jobs it made stay. True: code declares it, so it comes back with the next worker."""
        for _ in range(_TRIES):
            version, entry = await self._look(name)
            if version is None:
                raise _unknown(name)
            if await self._store.record(KIND, name, None, version) is not None:
                await self._ledger.note("schedules.remove", name)
                return entry is not None and entry.declared
        raise _contested(name)

    async def run_now(self, name: str) -> JobId:
        """Make its job now, outside of any slot: neither `overlap` nor a pause holds it back."""
        _, entry = await self._look(name)
        if entry is None:
            raise _unknown(name)
        batch = Batch(new_batch(), [job_now(entry.schedule)])
        answer = await self._store.enqueue(batch)
        holder = answer.existing.get(0)  # a job that holds the task's unique lock answers for it
        job = job_id(batch.id, 0) if holder is None else holder

        def note(entry: ScheduleEntry, now: datetime) -> ScheduleEntry:
            decision = Decision("run", now, "" if holder is None else UNIQUE, job=job)
            last = job if holder is None else entry.last
            return replace(entry, last=last, recent=(decision, *entry.recent)[:REMEMBERED])

        await self._change_known(name, note)
        await self._ledger.note("schedules.run_now", name, 1)
        return job

    async def _change_known(
        self, name: str, change: Callable[[ScheduleEntry, datetime], ScheduleEntry]
    ) -> ScheduleEntry:
        def known(entry: ScheduleEntry | None, now: datetime) -> ScheduleEntry:
            if entry is None:
                raise _unknown(name)
            return change(entry, now)

        return await self._change(name, known)


def _elsewhere(known: ScheduleEntry, app: str, tasks: Collection[str]) -> bool:
    """Whether another app declares it, and not this one before a deploy."""
    if known.app and app:
        return known.app != app
    return bool(tasks) and known.schedule.job.task not in tasks


def _warn(known: ScheduleEntry, schedule: Schedule, app: str) -> None:
    log.warning(
        "schedule %s is declared by two apps of this store: %s (%s, task %s), and now %s (%s, task %s): only this last "
        "one fires; give one of them another name",
        schedule.name,
        known.app or "one",
        known.schedule.rule,
        known.schedule.job.task,
        app or "this one",
        schedule.rule,
        schedule.job.task,
        extra={"event": "schedule.contested", "schedule": schedule.name},
    )


def _unknown(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule {name!r:.80}: `headrace schedules list` shows what there is")


def _contested(name: str) -> ConfigError:
    return ConfigError(f"schedule {name} keeps being changed by others: try again")


# ── the app ──────────────────────────────────────────────────────────────────


def declare(name: str, *, job: JobCall[object], **options: Unpack[ScheduleKeywords]) -> Schedule:
    """A checked schedule from the arguments of `app.schedule(…)`."""
    if not isinstance(job, JobCall):
        raise ConfigError(f"schedule {name!s:.63}: job = {job!r:.80}: write job=task.job(…)")
    if job.links is not None or job.job.wait is not None:
        raise ConfigError(
            f"schedule {name!s:.63}: its job of {job.job.task} follows other jobs, and each slot would need such jobs of its own: "
            "schedule a task that enqueues all of them, or awaits them"
        )
    return rules.declare(name, job=job.job, **options)


class AppSchedules:
    """The schedules in the store, listed and changed at run time. Verbs come in two, `x` for sync code and `ax` for async code."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.declared: dict[str, Schedule] = {}
        """The schedules of `app.schedule(…)`; a worker stores them when it starts."""

    async def alist(self) -> Mapping[str, ScheduleEntry]:
        """Every schedule by name, with its next slot and what became of the last ones."""
        return await (await self._operations()).all()

    list = blocking(alist)

    async def aadd(
        self, name: str, *, job: JobCall[object], replace: bool = False, **options: Unpack[ScheduleKeywords]
    ) -> ScheduleEntry:
        """Store a schedule now; running workers notice."""
        schedule = declare(name, job=job, **options)
        return await (await self._operations()).add(schedule, replace=replace)

    add = blocking(aadd)

    async def apause(self, name: str, *, by: str = "") -> None:
        """No slot fires until it is resumed, also if code declares the schedule anew."""
        await (await self._operations(by)).pause(name)

    pause = blocking(apause)

    async def aresume(self, name: str) -> None:
        """Undo `pause`; slots that came meanwhile are not caught up."""
        await (await self._operations()).resume(name)

    resume = blocking(aresume)

    async def arun_now(self, name: str) -> JobId:
        """Make its job now, outside of any slot."""
        return await (await self._operations()).run_now(name)

    run_now = blocking(arun_now)

    async def aremove(self, name: str) -> None:
        """Forget a schedule; one that code declares comes back with the next worker that starts."""
        await (await self._operations()).remove(name)

    remove = blocking(aremove)

    async def _operations(self, by: str = "") -> ScheduleOperations:
        client = await self._clients.here()
        # The bounded store refuses a job that would make its queue too long.
        return ScheduleOperations(client.bounded, Ledger.of(client.store, audit=client.audit, actor=by))
