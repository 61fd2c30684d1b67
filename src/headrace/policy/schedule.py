"""Schedules: a rule and the job it makes, its slots, and which of those to fire. No effects, and no store."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Final, Unpack
from uuid import UUID

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import BatchId, JobState, NewJob, UniqueLock
from headrace.model.lane import Lane, check_tenant
from headrace.policy.schedule_options import OPTIONS, SHORTEST, Overlap, ScheduleKeywords, caught_up, check_rule
from headrace.task.codec import decode_options
from headrace.task.job_checks import check_job, check_lane, check_span
from headrace.task.option import checked

ON_TIME: Final = timedelta(seconds=30)
"""A slot that is found within this time was not missed. It fires, whatever `catch_up` says."""
MOST_COUNTED: Final = 1000
_GAPS: Final = 2000
"""Slots in a row that are checked for the gap between them: more than a day of minutes."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)


class Template(msgspec.Struct, frozen=True):
    """The job that every slot makes."""

    task: str
    payload: bytes
    lane: Lane
    delay: timedelta = timedelta(0)
    """From the slot to the time it may run."""
    options: bytes | None = None
    unique: UniqueLock | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and the job that it makes, as `app.schedule` returns it."""

    name: str
    cron: str | None = None
    every: timedelta | None = None
    """Counted from 1970 on, in UTC: the same slots after every restart and in every process."""
    tz: str = "UTC"
    overlap: Overlap = "allow"
    catch_up: str = "last"
    jitter: timedelta = timedelta(0)
    job: Template

    @property
    def rule(self) -> str:
        """The rule for display: `0 3 * * * Europe/Rome`, `every 15m`."""
        if self.every is not None:
            return f"every {duration.show(self.every)}"
        return f"{self.cron} {self.tz}"


# ── declaring ────────────────────────────────────────────────────────────────


def declare(name: str, *, job: NewJob, **options: Unpack[ScheduleKeywords]) -> Schedule:
    """A schedule from what the user wrote; every mistake is a ConfigError that names the schedule and the way out."""
    check_name(name)
    try:
        if (options.get("cron") is None) == (options.get("every") is None):
            raise ConfigError('give a rule, either cron="0 3 * * *" or every="15m"')
        given = checked(OPTIONS, options, "schedule")
        if "every" in given and given.get("tz", "UTC") != "UTC":
            raise ConfigError("every counts elapsed time, which no time zone changes: leave out tz, or use cron")
        schedule = Schedule(name=name, job=_template(job), **given)
        if schedule.every is not None and schedule.jitter > schedule.every:
            raise ConfigError(
                f"jitter = {duration.show(schedule.jitter)} is longer than every = {duration.show(schedule.every)}: "
                "jobs would overtake each other"
            )
        _check_quiet(schedule)
        return schedule
    except ConfigError as error:
        raise type(error)(f"schedule {name}: {error}") from None


def check(schedule: Schedule) -> None:
    """Raise ConfigError unless `declare` could have made this schedule, because other programs write to the store, too.

    A time zone that this machine does not know is accepted, because other machines may know it.
    """
    if (schedule.cron is None) == (schedule.every is None):
        raise ConfigError("it has no rule")
    if schedule.every is not None and not SHORTEST <= schedule.every <= duration.LONGEST:
        raise ConfigError(f"every = {schedule.every}: from {duration.show(SHORTEST)} to {duration.LONGEST.days:,} days")
    if schedule.cron is not None:
        _known_cron(schedule.cron)
    caught_up(schedule.catch_up)
    check_span(schedule.jitter)
    check_span(schedule.job.delay)
    check_lane(schedule.job.lane)
    check_job(job_now(schedule))


_known_cron = lru_cache(maxsize=1024)(check_rule)


def check_name(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{str(name)[:80]!r} is not a valid schedule name: 1 to 63 of A-Z a-z 0-9 _ . - and a letter or digit first"
        )
    return name


def check_stored_name(name: str) -> str:
    """A stored name, or a ConfigError. The name of a tenant's own schedule begins with the tenant and a colon."""
    tenant, colon, own = name.rpartition(":")
    if colon:
        check_tenant(tenant)
    check_name(own)
    return name


def _template(job: NewJob) -> Template:
    if not isinstance(job, NewJob):
        raise ConfigError(f"job = {job!r:.80}: write job=task.job(…)")
    if job.key is not None:
        raise ConfigError("its job takes no key: each slot makes one job anyway")
    if isinstance(job.due, datetime):
        raise ConfigError("its job takes no run_at: the rule says when; delay= counts from the slot")
    own = decode_options(job.options)
    if isinstance(own.expires, datetime) or isinstance(own.deadline, datetime):
        raise ConfigError(
            'its job takes expires and deadline as durations, e.g. "10m": a time would suit one slot only'
        )
    return Template(job.task, job.payload, job.lane, job.due or timedelta(0), job.options, job.unique)


def _check_quiet(schedule: Schedule) -> None:
    """Refuse a job whose wait is so long that the job of the next slot always replaces it. It would never run."""
    lock, wait = schedule.job.unique, schedule.job.delay
    if lock is None or not lock.replace or not wait or JobState.SCHEDULED not in lock.states:
        return
    longest = wait if lock.within is None else min(wait, lock.within)
    slot = next_slot(schedule, _EPOCH)
    for later in islice(_forward(schedule, slot or _EPOCH), _GAPS):
        if slot is None or later - slot > longest:
            return
        slot = later
    raise ConfigError(
        f"its job waits for {duration.show(wait)} and the next slot, which is never later than that, makes another in its "
        'place: it would never run; use a longer interval, or Unique(on_conflict="return")'
    )


# ── slots ────────────────────────────────────────────────────────────────────


def slots(schedule: Schedule, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The first slots in (after, until], in UTC, at most `limit`."""
    first_slots: list[datetime] = []
    for slot in _forward(schedule, after):
        if slot > until or len(first_slots) >= limit:
            break
        first_slots.append(slot)
    return first_slots


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    """The first slot after that time; None: there is none within fifty years."""
    return next(_forward(schedule, after), None)


def latest(schedule: Schedule, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The last slots in (after, until], oldest first, at most `limit`."""
    last_slots: list[datetime] = []
    for slot in _backward(schedule, until):
        if slot <= after or len(last_slots) >= limit:
            break
        last_slots.append(slot)
    return last_slots[::-1]


def _forward(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    after = after.astimezone(UTC)
    if schedule.every is not None:
        return _intervals(schedule.every, (after - _EPOCH) // schedule.every + 1, 1)
    assert schedule.cron is not None
    from headrace.model.cron import forward, zone  # imported here, because only a cron rule needs it

    return forward(schedule.cron, after, zone(schedule.tz))


def _backward(schedule: Schedule, until: datetime) -> Iterator[datetime]:
    until = until.astimezone(UTC)
    if schedule.every is not None:
        return _intervals(schedule.every, (until - _EPOCH) // schedule.every, -1)
    assert schedule.cron is not None
    from headrace.model.cron import backward, zone  # imported here, because only a cron rule needs it

    return backward(schedule.cron, until, zone(schedule.tz))


def _intervals(every: timedelta, number: int, step: int) -> Iterator[datetime]:
    while True:
        yield _EPOCH + number * every
        number += step


# ── what to fire ─────────────────────────────────────────────────────────────


class Missed(msgspec.Struct, frozen=True):
    """Slots in (after, until] that passed while no worker ran a ticker."""

    after: datetime
    until: datetime
    count: int
    more: bool
    """There were more slots than were counted."""


class Due(msgspec.Struct, frozen=True):
    """The decision about the slots at one moment."""

    fire: tuple[datetime, ...]
    """Oldest first."""
    missed: Missed | None

    @property
    def until(self) -> datetime:
        """All slots up to this time are decided."""
        return self.fire[-1] if self.fire else self.missed.until if self.missed else _EPOCH


def due(schedule: Schedule, after: datetime, now: datetime) -> Due | None:
    """What to do about the slots in (after, now]; None: there are none."""
    edge = now - ON_TIME
    fresh = latest(schedule, max(after, edge), now, MOST_COUNTED)
    late: list[datetime] = []
    missed = None
    if after < edge:
        most = caught_up(schedule.catch_up)
        keep = (0 if fresh else 1) if most is None else most
        late = latest(schedule, after, edge, keep + 1)
        if len(late) > keep:
            missed = _missed(schedule, after, late[0])
            late = late[1:]
    if not fresh and not late and missed is None:
        return None
    return Due((*late, *fresh), missed)


def _missed(schedule: Schedule, after: datetime, until: datetime) -> Missed:
    count = len(slots(schedule, after, until, MOST_COUNTED + 1))
    return Missed(after, until, min(count, MOST_COUNTED), count > MOST_COUNTED)


# ── the job of a slot ────────────────────────────────────────────────────────


def slot_batch(name: str, slot: datetime) -> BatchId:
    """The batch of a slot. It is the same for every worker that fires it, so that it makes one job."""
    number = (slot - _EPOCH) // _MICROSECOND
    random = int.from_bytes(hashlib.blake2b(f"{name}\0{number}".encode(), digest_size=8).digest(), "big")
    high = (number // 1000 << 16) | 0x7000 | (random >> 52)
    low = (0b10 << 62) | ((random & ((1 << 46) - 1)) << 16)
    return BatchId(UUID(int=(high << 64) | low))


def slot_job(schedule: Schedule, slot: datetime) -> NewJob:
    """The job of a slot, with the slot's own jitter."""
    template = schedule.job
    wait = template.delay + _jitter(schedule, slot)
    return _job(template, slot + wait if wait else None)


def job_now(schedule: Schedule) -> NewJob:
    """The job outside any slot."""
    return _job(schedule.job, schedule.job.delay or None)


def _job(template: Template, due: timedelta | datetime | None) -> NewJob:
    return NewJob(template.task, template.payload, template.lane, due, None, template.options, template.unique)


def _jitter(schedule: Schedule, slot: datetime) -> timedelta:
    if not schedule.jitter:
        return timedelta(0)
    digest = hashlib.blake2b(f"jitter\0{schedule.name}\0{slot.isoformat()}".encode(), digest_size=4).digest()
    return schedule.jitter * (int.from_bytes(digest, "big") / 2**32)
