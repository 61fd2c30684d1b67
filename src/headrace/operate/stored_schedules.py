"""Schedules in a store: one record each, its rule and what became of its slots; and everything that is done to them.

A slot is decided once, by a compare-and-set that moves the record's cursor and names the slots to fire. Firing them is
safe to repeat, for a slot's job has the slot's own id; so whoever decides and dies leaves nothing undone and nothing twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.errors import ConfigError, ScheduleNotFound
from headrace.model.job import Batch, JobId, job_id, new_batch
from headrace.model.records import Record
from headrace.policy.schedule import (
    MOST_CAUGHT_UP,
    MOST_COUNTED,
    Missed,
    Schedule,
    check,
    due,
    job_now,
    next_slot,
    slot_batch,
)
from headrace.store.contract import Store
from headrace.task.job_checks import check_time

log = logging.getLogger("headrace.schedules")

KIND: Final = "schedule"
REMEMBERED: Final = 10
UNIQUE: Final = "unique"
"""Why a slot or a run by hand made no job: another one holds its unique lock."""
_TRIES: Final = 100

Answer = Literal["fired", "skipped", "run"]


class Decision(msgspec.Struct, frozen=True):
    """What became of a slot, or of several in a row."""

    answer: Answer
    """`run`: by hand, outside of any slot."""
    slot: datetime
    """The last of them."""
    reason: str = ""
    """Why it was skipped: `missed`, `overlap`, `replaced`; `unique`: no job was made, as another holds its unique lock."""
    count: int = 1
    job: UUID | None = None
    """The job made; of `unique` the one that was there."""


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule as it is stored."""

    schedule: Schedule
    cursor: datetime
    """Every slot up to here is decided."""
    digest: bytes = b""
    """Of the schedule as code last declared it; empty: it was added at run time."""
    app: str = ""
    """Whose code declares it."""
    paused: bool = False
    paused_by: str = ""
    pending: tuple[datetime, ...] = ()
    """Slots decided and perhaps not fired yet."""
    cancel: UUID | None = None
    """To be cancelled before they are fired."""
    last: UUID | None = None
    """The last job it made, and no other's: this is what `overlap` looks at and cancels."""
    fired: int = 0
    skipped: int = 0
    recent: tuple[Decision, ...] = ()
    """The last decisions, newest first."""

    @property
    def declared(self) -> bool:
        return bool(self.digest)

    def next_slot(self, now: datetime) -> datetime | None:
        """The next slot to be decided; None: it is paused."""
        return None if self.paused else next_slot(self.schedule, max(self.cursor, now))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScheduleEntry)


def encode(entry: ScheduleEntry) -> bytes:
    """As it is stored."""
    return _encoder.encode(entry)


def decode(name: str, record: Record) -> ScheduleEntry | None:
    """None, with a word in the log: it cannot be read, perhaps because a newer version wrote it."""
    try:
        return read(name, record.value)
    except ConfigError as error:
        log.warning("schedule %s cannot be read and does not tick: %s; update headrace, or remove it", name, error)
        return None


def read(name: str, value: bytes) -> ScheduleEntry:
    """The entry, or a ConfigError: whatever is stored, no worker that ticks may stumble over it."""
    try:
        entry = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"that is no schedule: {error}") from None
    if entry.schedule.name != name:
        raise ConfigError(f"it is the schedule {entry.schedule.name!r:.80}")
    check(entry.schedule)
    for moment in (entry.cursor, *entry.pending, *(decision.slot for decision in entry.recent)):
        check_time(moment)
    if len(entry.pending) > MOST_CAUGHT_UP + MOST_COUNTED:
        raise ConfigError(f"{len(entry.pending):,} of its slots are to be fired at once")
    return entry


# ── deciding, pure ───────────────────────────────────────────────────────────


def decide(entry: ScheduleEntry, now: datetime, *, busy: bool) -> ScheduleEntry | None:
    """The entry with every slot up to now decided; None: there was none. `busy`: its last job is not finished."""
    if entry.paused or entry.pending or (found := due(entry.schedule, entry.cursor, now)) is None:
        return None
    name, overlap = entry.schedule.name, entry.schedule.overlap
    fire, passed = found.fire, found.fire[:0]
    if overlap == "skip":
        taken = len(fire) if busy else len(fire) - 1  # the latest: what is on time goes before what is caught up
        fire, passed = fire[taken:], fire[:taken]
    elif overlap == "cancel":
        fire, passed = fire[-1:], fire[:-1]
    news = _missed(found.missed)
    if passed:
        news.append(Decision("skipped", passed[-1], "overlap" if overlap == "skip" else "replaced", len(passed)))
    news += [Decision("fired", slot, job=slot_job_id(name, slot)) for slot in fire]
    news.sort(key=lambda decision: decision.slot, reverse=True)
    return replace(
        entry,
        cursor=found.until,
        pending=fire,
        cancel=entry.last if overlap == "cancel" and busy and fire else None,
        fired=entry.fired + len(fire),
        skipped=entry.skipped + sum(decision.count for decision in news if decision.answer == "skipped"),
        recent=(*news, *entry.recent)[:REMEMBERED],
    )


def fired(entry: ScheduleEntry, met: Mapping[datetime, JobId]) -> ScheduleEntry:
    """The entry once its pending slots are fired. `met`: slots that made no job, and who holds its unique lock."""
    made = [slot for slot in entry.pending if slot not in met]
    return replace(
        entry,
        pending=(),
        cancel=None,
        last=slot_job_id(entry.schedule.name, made[-1]) if made else entry.last,
        fired=entry.fired - len(met),
        skipped=entry.skipped + len(met),
        recent=tuple(
            Decision("skipped", each.slot, UNIQUE, job=met[each.slot])
            if each.answer == "fired" and each.slot in met
            else each
            for each in entry.recent
        ),
    )


def _missed(missed: Missed | None) -> list[Decision]:
    if missed is None:
        return []
    return [Decision("skipped", missed.until, "missed, and more before" if missed.more else "missed", missed.count)]


def slot_job_id(name: str, slot: datetime) -> JobId:
    """The id of the job that a slot makes."""
    return job_id(slot_batch(name, slot), 0)


def fingerprint(schedule: Schedule) -> bytes:
    """Changes with anything that was declared."""
    return hashlib.blake2b(msgspec.msgpack.encode(schedule), digest_size=16).digest()


def redefined(entry: ScheduleEntry, schedule: Schedule, now: datetime) -> ScheduleEntry:
    """The entry under another definition. Under another rule it begins anew: no slot of the new one was ever missed."""
    old = entry.schedule
    same_rule = (old.cron, old.every, old.tz) == (schedule.cron, schedule.every, schedule.tz)
    return replace(entry, schedule=schedule, cursor=entry.cursor if same_rule else max(now, entry.cursor))


# ── the verbs ────────────────────────────────────────────────────────────────


class Schedules:
    """What can be done to the schedules of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> dict[str, ScheduleEntry]:
        """Every schedule by name."""
        records = await self._store.records(KIND)
        return {name: entry for name, record in records.items() if (entry := decode(name, record)) is not None}

    async def add(self, schedule: Schedule, *, replace: bool = False) -> ScheduleEntry:
        """Store a schedule; one of that name is a ConfigError unless it is to be replaced."""

        def change(entry: ScheduleEntry | None, now: datetime) -> ScheduleEntry:
            if entry is None:
                return ScheduleEntry(schedule=schedule, cursor=now)
            if not replace:
                raise ConfigError(f"there is a schedule {schedule.name} already: remove it first, or replace it")
            return redefined(entry, schedule, now)

        return await self._change(schedule.name, change)

    async def declare(self, declared: Mapping[str, Schedule], *, app: str, tasks: Collection[str]) -> list[str]:
        """Store what code declares, where it has changed; answers what code declared once and no longer does."""
        found = await self.all()
        for name, schedule in declared.items():
            known = found.get(name)
            if known is not None and known.digest == fingerprint(schedule):
                continue  # and what was changed at run time stays so
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
            for name, entry in found.items()
            if entry.declared
            and name not in declared
            and (entry.schedule.job.task in tasks or (app and entry.app == app))
        ]

    async def pause(self, name: str, *, by: str = "") -> ScheduleEntry:
        """No slot fires until it is resumed."""
        return await self._change_known(name, lambda entry, _: replace(entry, paused=True, paused_by=by))

    async def resume(self, name: str) -> ScheduleEntry:
        """Undo `pause`; what came meanwhile is not caught up."""
        return await self._change_known(
            name,
            lambda entry, now: replace(entry, paused=False, paused_by="", cursor=now) if entry.paused else entry,
        )

    async def remove(self, name: str) -> bool:
        """Forget a schedule; jobs it made stay. True: code declares it, so it comes back with the next worker."""
        for _ in range(_TRIES):
            version, entry = await self._look(name)
            if version is None:
                raise _unknown(name)
            if await self._store.record(KIND, name, None, version) is not None:
                return entry is not None and entry.declared
        raise _contested(name)

    async def run_now(self, name: str) -> JobId:
        """Make its job now, outside of any slot and whatever `overlap` says, paused or not."""
        _, entry = await self._look(name)
        if entry is None:
            raise _unknown(name)
        batch = Batch(new_batch(), [job_now(entry.schedule)])
        answer = await self._store.enqueue(batch)
        holder = answer.existing.get(0)  # one that holds the task's unique lock answers for it
        made = job_id(batch.id, 0) if holder is None else holder

        def note(entry: ScheduleEntry, now: datetime) -> ScheduleEntry:
            told = Decision("run", now, "" if holder is None else UNIQUE, job=made)
            last = made if holder is None else entry.last
            return replace(entry, last=last, recent=(told, *entry.recent)[:REMEMBERED])

        await self._change_known(name, note)
        return made

    async def _change_known(
        self, name: str, change: Callable[[ScheduleEntry, datetime], ScheduleEntry]
    ) -> ScheduleEntry:
        def known(entry: ScheduleEntry | None, now: datetime) -> ScheduleEntry:
            if entry is None:
                raise _unknown(name)
            return change(entry, now)

        return await self._change(name, known)

    async def _change(
        self, name: str, change: Callable[[ScheduleEntry | None, datetime], ScheduleEntry]
    ) -> ScheduleEntry:
        """Read, change, write; again when somebody else was first."""
        for _ in range(_TRIES):
            version, entry = await self._look(name)
            changed = change(entry, await self._store.now())
            if changed == entry or await self._store.record(KIND, name, encode(changed), version) is not None:
                return changed
        raise _contested(name)

    async def _look(self, name: str) -> tuple[int | None, ScheduleEntry | None]:
        record = (await self._store.records(KIND)).get(name)
        return (None, None) if record is None else (record.version, decode(name, record))


def _elsewhere(known: ScheduleEntry, app: str, tasks: Collection[str]) -> bool:
    """Whether it is another app that declares it, not this one as it was before a deploy."""
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
