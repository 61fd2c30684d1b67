"""Schedules: cron and interval rules, the slots they name, and which of those to fire. Pure: nothing here knows a store.

A cron rule that runs in every hour of the day (`*/15 * * * *`) follows elapsed time: it fires at every instant whose
local time fits. Any other rule follows the wall clock: each time of day that fits fires once. A time that a clock change
leaves out fires at the first instant after the gap; one that comes twice fires the first time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, Literal, get_args
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from headrace import duration
from headrace.codec import decode_options
from headrace.errors import ConfigError, InvalidCron, NeverFires
from headrace.job import BatchId, NewJob
from headrace.lane import Lane

Overlap = Literal["allow", "skip", "cancel"]

ON_TIME: Final = timedelta(seconds=30)
"""A slot noticed within so long was not missed: it fires, whatever `catch_up` says."""
SHORTEST: Final = timedelta(seconds=1)
MOST_CAUGHT_UP: Final = 1000
MOST_COUNTED: Final = 1000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST_EXPRESSION: Final = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_ALL = re.compile(r"all\((\d{1,4})\)", re.ASCII)
_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MAY_BE: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L (the last) or LW (the last weekday)",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday) or SUN to SAT, MON#2 (the second), 5L (the last Friday)",
}


class Template(msgspec.Struct, frozen=True):
    """The job that every slot makes."""

    task: str
    payload: bytes
    lane: Lane
    delay: timedelta = timedelta(0)
    """From the slot to the time it may run."""
    options: bytes | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule and the job it makes, checked by `declare`."""

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
        """The rule for people: `0 3 * * * Europe/Rome`, `every 15m`."""
        if self.every is not None:
            return f"every {duration.show(self.every)}"
        return f"{self.cron} {self.tz}"


# ── declaring ────────────────────────────────────────────────────────────────


def declare(
    name: str,
    *,
    cron: str | None = None,
    every: duration.Duration | None = None,
    tz: str = "UTC",
    job: NewJob,
    overlap: str = "allow",
    catch_up: str = "last",
    jitter: duration.Duration | None = None,
) -> Schedule:
    """A schedule from what the user wrote; every mistake is a ConfigError that names the schedule and the way out."""
    check_name(name)
    try:
        if (cron is None) == (every is None):
            raise ConfigError('give a rule, either cron="0 3 * * *" or every="15m"')
        if every is not None and tz != "UTC":
            raise ConfigError("every counts elapsed time, which no time zone changes: leave out tz, or use cron")
        if overlap not in get_args(Overlap):
            raise ConfigError(f"overlap = {overlap!r}: one of {', '.join(get_args(Overlap))}")
        _caught_up(catch_up)
        zone(tz)
        length = None if every is None else _interval(every)
        spread = _time(jitter, "jitter") if jitter is not None else timedelta(0)
        if length is not None and spread > length:
            raise ConfigError(
                f"jitter = {duration.show(spread)} is longer than every = {duration.show(length)}: "
                "jobs would overtake each other"
            )
        return Schedule(
            name=name,
            cron=None if cron is None else check_cron(cron),
            every=length,
            tz=tz,
            overlap=overlap,  # type: ignore[arg-type]  # looked at above
            catch_up=catch_up,
            jitter=spread,
            job=_template(job),
        )
    except ConfigError as error:
        raise type(error)(f"schedule {name}: {error}") from None


def check_name(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{str(name)[:80]!r} is no schedule name: 1 to 63 of A-Z a-z 0-9 _ . - and a letter or digit first"
        )
    return name


def check_cron(expression: str) -> str:
    """The expression in one spelling, aliases resolved; InvalidCron or NeverFires otherwise."""
    if not isinstance(expression, str):
        raise InvalidCron(f'cron = {expression!r:.80}: write "0 3 * * *" or "@daily"')
    if len(expression) > _LONGEST_EXPRESSION:
        raise InvalidCron(f"cron has {len(expression):,} characters: at most {_LONGEST_EXPRESSION}")
    shown = f"cron = {expression!r}"
    if not expression.isascii() or not expression.isprintable():
        raise InvalidCron(f"{shown}: one line of plain ASCII, please")
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in _ALIASES:
            why = "a queue is never booted: enqueue when your program starts" if text.lower() == "@reboot" else ""
            raise InvalidCron(f"{shown}: {why or 'known are ' + ', '.join(_ALIASES)}")
        return _ALIASES[text.lower()]
    fields = text.upper().split()
    if len(fields) not in {5, 6}:
        raise InvalidCron(
            f"{shown} has {len(fields)} fields: write 5 (minute hour day month weekday), or 6 with seconds first"
        )
    try:
        found = next(CronSim(" ".join(fields), datetime(2000, 1, 1)), None)  # noqa: DTZ001 - naive: no zone is asked
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        if field == "day-of-month" and _day_is_well_formed(fields):
            found = None
        else:
            raise InvalidCron(f"{shown}: the {field} field is wrong: {_MAY_BE.get(field, '')}") from None
    if found is None:
        raise NeverFires(f"{shown} never fires: no month it names has that day")
    return " ".join(fields)


def _day_is_well_formed(fields: list[str]) -> bool:
    """Whether the day of the month is wrong only together with the months."""
    try:
        CronSim(f"0 0 {fields[-3]} * *", datetime(2000, 1, 1))  # noqa: DTZ001 - naive: no zone is asked
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """The time zone, or a ConfigError."""
    try:
        if not isinstance(name, str) or len(name) > 64:
            raise ValueError
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        known = available_timezones()
        near = get_close_matches(str(name)[:64], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else 'write e.g. "Europe/Rome"'
        if not known:
            hint = "this machine has no time zone data: install the package tzdata"
        raise ConfigError(f"tz = {str(name)[:80]!r} is no time zone: {hint}") from None


def _caught_up(text: str) -> int | None:
    """How many late slots to fire at most; None: the last one, if no later one is on time."""
    if text == "last":
        return None
    if text == "none":
        return 0
    match = _ALL.fullmatch(text) if isinstance(text, str) else None
    if match is None or not 1 <= int(match[1]) <= MOST_CAUGHT_UP:
        raise ConfigError(
            f'catch_up = {str(text)[:80]!r}: "none", "last", or "all(24)" with a number from 1 to {MOST_CAUGHT_UP:,}'
        )
    return int(match[1])


def _time(value: duration.Duration, name: str) -> timedelta:
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'{name} = {value!r} is no duration: write "30s", "5m" or a timedelta')
    return duration.parse(value, name=name)


def _interval(every: duration.Duration) -> timedelta:
    found = _time(every, "every")
    if found < SHORTEST:
        raise ConfigError(f"every = {duration.show(found)} is too short: at least {duration.show(SHORTEST)}")
    return found


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
    return Template(job.task, job.payload, job.lane, job.due or timedelta(0), job.options)


# ── slots ────────────────────────────────────────────────────────────────────


def slots(schedule: Schedule, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The first slots in (after, until], in UTC, at most `limit`."""
    found: list[datetime] = []
    for slot in _forward(schedule, after):
        if slot > until or len(found) >= limit:
            break
        found.append(slot)
    return found


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    """The first slot after that time; None: there is none within fifty years."""
    return next(_forward(schedule, after), None)


def latest(schedule: Schedule, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The last slots in (after, until], oldest first, at most `limit`."""
    found: list[datetime] = []
    for slot in _backward(schedule, until):
        if slot <= after or len(found) >= limit:
            break
        found.append(slot)
    return found[::-1]


def _forward(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    after = after.astimezone(UTC)
    if schedule.every is not None:
        return _intervals(schedule.every, (after - _EPOCH) // schedule.every + 1, 1)
    assert schedule.cron is not None
    walk = _elapsed_forward if _every_hour(schedule.cron) else _wall_forward
    return walk(schedule.cron, after, zone(schedule.tz))


def _backward(schedule: Schedule, until: datetime) -> Iterator[datetime]:
    until = until.astimezone(UTC)
    if schedule.every is not None:
        return _intervals(schedule.every, (until - _EPOCH) // schedule.every, -1)
    assert schedule.cron is not None
    walk = _elapsed_backward if _every_hour(schedule.cron) else _wall_backward
    return walk(schedule.cron, until.replace(microsecond=0), zone(schedule.tz))


def _intervals(every: timedelta, number: int, step: int) -> Iterator[datetime]:
    while True:
        yield _EPOCH + number * every
        number += step


@lru_cache(maxsize=1024)
def _every_hour(cron: str) -> bool:
    return len(CronSim(cron, datetime(2000, 1, 1)).hours) == 24  # noqa: DTZ001 - naive: no zone is asked


# The library walks through naive times only. What it would do about clock changes itself depends on how a rule is
# spelt, and it steps over times that come twice where clocks are turned by half an hour.


def _wall_forward(cron: str, after: datetime, where: ZoneInfo) -> Iterator[datetime]:
    start = after.astimezone(where)
    # In the second pass through these times all of them have fired in the first.
    walk = CronSim(cron, _fold_end(start) - _SECOND if start.fold else _naive(start))
    last = after
    while (naive := next(walk, None)) is not None:
        instant, shown = _instant(naive, where)
        if shown is not None:
            walk.dt = shown  # out of the gap at once: a rule with seconds may name thousands of times in it
        if instant > last:
            last = instant
            yield instant


def _wall_backward(cron: str, until: datetime, where: ZoneInfo) -> Iterator[datetime]:
    start = until.astimezone(where)
    last: datetime | None = None
    for naive in CronSim(cron, _fold_end(start) if start.fold else _naive(start) + _SECOND, reverse=True):
        instant, _ = _instant(naive, where)
        if instant <= until and instant != last:
            last = instant
            yield instant


def _elapsed_forward(cron: str, after: datetime, where: ZoneInfo) -> Iterator[datetime]:
    offset = _offset(after, where)
    walk = CronSim(cron, (after + offset).replace(tzinfo=None))
    while (naive := next(walk, None)) is not None:
        instant = naive.replace(tzinfo=UTC) - offset
        change = _first_change(after, instant, where)
        if change is None:
            after = instant
            yield instant
        else:
            after, offset = change, _offset(change, where)
            walk.dt = (change + offset - _SECOND).replace(tzinfo=None)


def _elapsed_backward(cron: str, until: datetime, where: ZoneInfo) -> Iterator[datetime]:
    offset = _offset(until, where)
    walk = CronSim(cron, (until + offset + _SECOND).replace(tzinfo=None), reverse=True)
    while (naive := next(walk, None)) is not None:
        instant = naive.replace(tzinfo=UTC) - offset
        change = _last_change(instant, until, where)
        if change is None:
            until = instant
            yield instant
        else:
            until = change - _SECOND
            offset = _offset(until, where)
            walk.dt = (change + offset).replace(tzinfo=None)


# ── clock changes ────────────────────────────────────────────────────────────


def _naive(local: datetime) -> datetime:
    return local.replace(tzinfo=None, fold=0)


def _offset(instant: datetime, where: ZoneInfo) -> timedelta:
    return instant.astimezone(where).utcoffset() or timedelta(0)


def _first_change(after: datetime, until: datetime, where: ZoneInfo) -> datetime | None:
    """The first clock change in (after, until]. No zone has two within a day."""
    while after < until:
        step = min(until, after + _DAY)
        if _offset(step, where) != _offset(after, where):
            return _change(after, step, where)
        after = step
    return None


def _last_change(after: datetime, until: datetime, where: ZoneInfo) -> datetime | None:
    """The last clock change in (after, until]."""
    while after < until:
        step = max(after, until - _DAY)
        if _offset(step, where) != _offset(until, where):
            return _change(step, until, where)
        until = step
    return None


def _instant(naive: datetime, where: ZoneInfo) -> tuple[datetime, datetime | None]:
    """When a wall clock shows that time first; in a gap the first instant after it, and what the clock shows then."""
    early, late = naive.replace(tzinfo=where), naive.replace(tzinfo=where, fold=1)
    if early.utcoffset() == late.utcoffset():
        return early.astimezone(UTC), None
    first, second = early.astimezone(UTC), late.astimezone(UTC)
    if second > first:
        return first, None
    change = _change(second, first, where)
    return change, _naive(change.astimezone(where))


def _fold_end(local: datetime) -> datetime:
    """Of a time in its second pass: what the clock would have shown, had it not been turned back."""
    assert isinstance(local.tzinfo, ZoneInfo)
    first = local.replace(fold=0)
    change = _change(first.astimezone(UTC), local.astimezone(UTC), local.tzinfo)
    return (change + (first.utcoffset() or timedelta(0))).replace(tzinfo=None)


def _change(before: datetime, after: datetime, where: ZoneInfo) -> datetime:
    """The first second in (before, after] at which the clock has been turned."""
    before = before.replace(microsecond=0)
    offset = _offset(before, where)
    low, high = 0, -((before - after) // _SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(before + middle * _SECOND, where) == offset:
            low = middle
        else:
            high = middle
    return before + high * _SECOND


# ── what to fire ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Missed:
    """Every slot in (after, until] came and went while nobody ticked."""

    after: datetime
    until: datetime
    count: int
    more: bool
    """There were more than were counted."""


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be decided at one moment."""

    fire: tuple[datetime, ...]
    """Oldest first."""
    missed: Missed | None

    @property
    def until(self) -> datetime:
        """Up to here everything is decided."""
        return self.fire[-1] if self.fire else self.missed.until if self.missed else _EPOCH


def due(schedule: Schedule, after: datetime, now: datetime) -> Due | None:
    """What to do about the slots in (after, now]; None: there are none."""
    edge = now - ON_TIME
    fresh = latest(schedule, max(after, edge), now, MOST_COUNTED)
    late: list[datetime] = []
    missed = None
    if after < edge:
        most = _caught_up(schedule.catch_up)
        keep = (0 if fresh else 1) if most is None else most
        found = latest(schedule, after, edge, keep + 1)
        if len(found) > keep:
            missed = _missed(schedule, after, found[0])
            found = found[1:]
        late = found
    if not fresh and not late and missed is None:
        return None
    return Due((*late, *fresh), missed)


def _missed(schedule: Schedule, after: datetime, until: datetime) -> Missed:
    count = len(slots(schedule, after, until, MOST_COUNTED + 1))
    return Missed(after, until, min(count, MOST_COUNTED), count > MOST_COUNTED)


# ── the job of a slot ────────────────────────────────────────────────────────


def slot_batch(name: str, slot: datetime) -> BatchId:
    """The batch of a slot: the same whoever fires it, so that it makes one job."""
    number = (slot - _EPOCH) // _MICROSECOND
    random = int.from_bytes(hashlib.blake2b(f"{name}\0{number}".encode(), digest_size=8).digest(), "big")
    high = (number // 1000 << 16) | 0x7000 | (random >> 52)
    low = (0b10 << 62) | ((random & ((1 << 46) - 1)) << 16)
    return BatchId(UUID(int=(high << 64) | low))


def slot_job(schedule: Schedule, slot: datetime) -> NewJob:
    """The job of a slot, with its jitter, which is the slot's own."""
    template = schedule.job
    wait = template.delay + _jitter(schedule, slot)
    return NewJob(template.task, template.payload, template.lane, slot + wait if wait else None, None, template.options)


def job_now(schedule: Schedule) -> NewJob:
    """The job outside of any slot."""
    template = schedule.job
    return NewJob(template.task, template.payload, template.lane, template.delay or None, None, template.options)


def _jitter(schedule: Schedule, slot: datetime) -> timedelta:
    if not schedule.jitter:
        return timedelta(0)
    digest = hashlib.blake2b(f"jitter\0{schedule.name}\0{slot.isoformat()}".encode(), digest_size=4).digest()
    return schedule.jitter * (int.from_bytes(digest, "big") / 2**32)
