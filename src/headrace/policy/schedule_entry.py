"""A schedule as it is stored: its rule, what became of its slots, and the decision which slots fire.

A slot is decided once, by a compare-and-set that moves the cursor of the entry and names the slots to fire. Firing them is
safe to repeat, because the job of a slot has the slot's own id. A process that decides and dies therefore leaves nothing
undone and nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.job import JobId, job_id
from headrace.policy.schedule import MOST_COUNTED, Missed, Schedule, check, due, next_slot, slot_batch
from headrace.policy.schedule_options import MOST_CAUGHT_UP
from headrace.task.job_checks import check_time

REMEMBERED: Final = 10
"""Decisions that an entry keeps."""
UNIQUE: Final = "unique"
"""Why a slot or a run by hand made no job: another one holds its unique lock."""

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
    """The rule and the job that it makes."""
    cursor: datetime
    """Every slot up to here is decided."""
    digest: bytes = b""
    """Of the schedule as code last declared it; empty: it was added at run time."""
    app: str = ""
    """The app whose code declares it."""
    paused: bool = False
    """Whether the schedule is paused."""
    paused_by: str = ""
    """The operator that paused it. Empty: none."""
    pending: tuple[datetime, ...] = ()
    """Slots decided and perhaps not fired yet."""
    cancel: UUID | None = None
    """To be cancelled before they are fired."""
    last: UUID | None = None
    """The last job that the schedule itself made: `overlap` looks at it and cancels it."""
    fired: int = 0
    """Slots that made a job, ever."""
    skipped: int = 0
    """Slots that made no job, ever."""
    recent: tuple[Decision, ...] = ()
    """The last decisions, newest first."""

    @property
    def declared(self) -> bool:
        """Whether code declares the schedule. False: it was added at run time."""
        return bool(self.digest)

    def next_slot(self, now: datetime) -> datetime | None:
        """The next slot to be decided; None: it is paused."""
        return None if self.paused else next_slot(self.schedule, max(self.cursor, now))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScheduleEntry)


def encode(entry: ScheduleEntry) -> bytes:
    """The bytes that a store keeps."""
    return _encoder.encode(entry)


def read(name: str, value: bytes) -> ScheduleEntry:
    """The entry, checked, or a ConfigError: a worker that ticks relies on what it reads."""
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
    if entry.paused or entry.pending or (due_slots := due(entry.schedule, entry.cursor, now)) is None:
        return None
    name, overlap = entry.schedule.name, entry.schedule.overlap
    fire, passed = due_slots.fire, due_slots.fire[:0]
    if overlap == "skip":
        taken = len(fire) if busy else len(fire) - 1  # the latest: what is on time goes before what is caught up
        fire, passed = fire[taken:], fire[:taken]
    elif overlap == "cancel":
        fire, passed = fire[-1:], fire[:-1]
    news = _missed(due_slots.missed)
    if passed:
        news.append(Decision("skipped", passed[-1], "overlap" if overlap == "skip" else "replaced", len(passed)))
    news += [Decision("fired", slot, job=slot_job_id(name, slot)) for slot in fire]
    news.sort(key=lambda decision: decision.slot, reverse=True)
    return replace(
        entry,
        cursor=due_slots.until,
        pending=fire,
        cancel=entry.last if overlap == "cancel" and busy and fire else None,
        fired=entry.fired + len(fire),
        skipped=entry.skipped + sum(decision.count for decision in news if decision.answer == "skipped"),
        recent=(*news, *entry.recent)[:REMEMBERED],
    )


def fired(entry: ScheduleEntry, met: Mapping[datetime, JobId]) -> ScheduleEntry:
    """The entry once its pending slots are fired. `met`: slots that made no job, and the job that holds the unique lock."""
    fired_slots = [slot for slot in entry.pending if slot not in met]
    return replace(
        entry,
        pending=(),
        cancel=None,
        last=slot_job_id(entry.schedule.name, fired_slots[-1]) if fired_slots else entry.last,
        fired=entry.fired - len(met),
        skipped=entry.skipped + len(met),
        recent=tuple(
            Decision("skipped", decision.slot, UNIQUE, job=met[decision.slot])
            if decision.answer == "fired" and decision.slot in met
            else decision
            for decision in entry.recent
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
