"""How a limit recovers: what is kept of it in a store, what it allows, and what becomes of it after each job. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import floor

import msgspec

from headrace.task.limit import LimitDeclaration, LimitFigures, burst_of

LEAST_FACTOR = 1 / 64
"""However often a limit is refused, so much of it is left."""
GROWTH = 0.05
"""What a second with successes gives back of a limit that was cut down."""
GROWS_EVERY = timedelta(seconds=1)
RESTS_EVERY = timedelta(minutes=1)
"""A limit that was cut down gets the same back for every such while by itself, whether or not its jobs succeed."""
QUIET = timedelta(days=1)
"""What has heard nothing for so long is as good as new."""
LONGEST_COOL_DOWN = timedelta(minutes=5)

# ── what is kept of a limit in a store ───────────────────────────────────────


class LimitHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a limit has been through. The default: nothing, or it has recovered."""

    factor: float = 1.0
    """How much of the figures is allowed."""
    closed_at: datetime | None = None
    """What was claimed before that has no more to say of it."""
    closed_until: datetime | None = None
    """It has been closed; one job at a time from then on, until one succeeds. None: it is open."""
    closings: int = 0
    """In a row, without a success in between."""
    failures: int = 0
    """In a row, while it is open."""
    grown_at: datetime | None = None
    failed_at: datetime | None = None
    """The last of the failures."""


WELL = LimitHealth()


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is known of a limit, as its rule's `state` keeps it."""

    declared: LimitDeclaration | None = None
    """None: no code has declared it (yet); or, of a whole key, its limit's counts."""
    override: LimitFigures | None = None
    """What an operator has set in place of the declared figures."""
    health: LimitHealth = WELL


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(State).decode


def pack(state: State) -> bytes:
    """For `LimitRule.state`."""
    return _encode(state)


def unpack(data: bytes) -> State:
    """What `pack` made; anything else counts as nothing known."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return State()


# ── what it allows ───────────────────────────────────────────────────────────


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit allows right now; half open (`closed_until` has passed) one job at a time on top of that."""

    concurrency: int | None = None
    rate: float | None = None
    burst: float = 1.0
    closed_until: datetime | None = None


def figures_of(declared: LimitDeclaration | None, override: LimitFigures | None) -> LimitFigures:
    """What counts: an operator's word, where there is one, stands for the code's."""
    usual = LimitFigures() if declared is None else declared.figures
    if override is None:
        return usual
    rate = usual.rate if override.rate is None else override.rate
    # A declared burst was chosen for the declared rate: it stays unless another one is set.
    return LimitFigures(
        concurrency=usual.concurrency if override.concurrency is None else override.concurrency,
        rate=rate,
        burst=usual.burst if override.burst is None else override.burst,
    )


def rule_of(declared: LimitDeclaration | None, override: LimitFigures | None, health: LimitHealth) -> Allowed:
    """What a limit allows: its figures, cut down by what it has been through."""
    figures = figures_of(declared, override)
    cost = 1 if declared is None else declared.cost
    # Half open, whoever comes first is let through alone, whatever it costs: stores see to that by `closed_until`.
    cut = health.factor if health.closed_until is None else 1.0
    concurrency = figures.concurrency
    if concurrency is not None:
        concurrency = max(floor(concurrency * cut), min(cost, concurrency))
    burst = float(burst_of(figures, cost))
    if figures.rate is None:
        return Allowed(concurrency=concurrency, burst=burst, closed_until=health.closed_until)
    # One job must always fit into the bucket, or it could never run.
    burst = max(floor(burst * cut), min(float(cost), burst))
    return Allowed(
        concurrency=concurrency, rate=figures.rate * health.factor, burst=burst, closed_until=health.closed_until
    )


# ── what becomes of a limit ──────────────────────────────────────────────────


class What(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    """By whom the limit protects: with a time."""


class LimitObservation(msgspec.Struct, frozen=True):
    """What became of one job that needed the limit."""

    what: What
    claimed_at: datetime
    until: datetime | None = None
    """REFUSED until then."""


def rested(health: LimitHealth, now: datetime) -> LimitHealth:
    """How a limit is after some time, whatever became of its jobs."""
    if health.closed_until is not None:
        return WELL if now - health.closed_until >= QUIET else health
    if health.failures and health.failed_at is not None and now - health.failed_at >= QUIET:
        health = msgspec.structs.replace(health, failures=0, failed_at=None)
    if health.factor < 1.0 and health.grown_at is not None:
        periods = (now - health.grown_at) // RESTS_EVERY
        if periods > 0:
            factor, grown_at = health.factor + GROWTH * periods, health.grown_at + RESTS_EVERY * periods
            health = msgspec.structs.replace(health, factor=min(factor, 1.0), grown_at=grown_at)
    return WELL if health.factor >= 1.0 and not health.failures else health


def after(health: LimitHealth, seen: LimitObservation, declared: LimitDeclaration, now: datetime) -> LimitHealth:
    """How a limit is after what became of one job. The same answers everywhere: workers agree through the store."""
    health = rested(health, now)
    match seen.what:
        case What.REFUSED:
            until = max(seen.until or now, now)
            if _was_under_way(health, seen):
                # When the limit was closed: no news but for the time.
                if health.closed_until is None or until <= health.closed_until:
                    return health
                return msgspec.structs.replace(health, closed_until=until)
            return _closed(health, until, now)
        case What.FAILED:
            return _failed(health, seen, declared, now)
        case What.SUCCEEDED:
            return _succeeded(health, seen, now)


def _was_under_way(health: LimitHealth, seen: LimitObservation) -> bool:
    """Whether this job was claimed before the limit was closed, or before claims knew of that: none is while it is."""
    since = health.closed_until or health.closed_at
    return since is not None and seen.claimed_at < since


def _closed(health: LimitHealth, until: datetime, now: datetime) -> LimitHealth:
    return LimitHealth(
        factor=max(health.factor / 2, LEAST_FACTOR),
        closed_at=now,
        closed_until=until,
        closings=health.closings + 1,
    )


def _failed(health: LimitHealth, seen: LimitObservation, declared: LimitDeclaration, now: datetime) -> LimitHealth:
    if declared.breaker is None or _was_under_way(health, seen):
        return health
    failures = health.failures + 1
    probing = health.closed_until is not None
    if not probing and failures < declared.breaker:
        return msgspec.structs.replace(health, failures=failures, failed_at=now)
    cool_down = timedelta(seconds=declared.cool_down * 2 ** min(health.closings, 30))
    return _closed(health, now + max(min(cool_down, LONGEST_COOL_DOWN), timedelta(seconds=declared.cool_down)), now)


def _succeeded(health: LimitHealth, seen: LimitObservation, now: datetime) -> LimitHealth:
    if health == WELL:
        return health
    if health.closed_until is not None:
        if seen.claimed_at < health.closed_until:
            return health  # it was under way before: no proof
        return LimitHealth(factor=health.factor, closed_at=health.closed_until, grown_at=now)
    if health.factor >= 1.0:
        return WELL
    if health.closed_at is not None and seen.claimed_at < health.closed_at:
        return health
    if health.grown_at is not None and now - health.grown_at < GROWS_EVERY:
        return health if not health.failures else msgspec.structs.replace(health, failures=0, failed_at=None)
    factor = health.factor + GROWTH
    if factor >= 1.0:
        return WELL
    return msgspec.structs.replace(health, factor=factor, grown_at=now, failures=0, failed_at=None)


def moment(until: timedelta | datetime, now: datetime) -> datetime:
    """A time in UTC from what a task gave."""
    return (now + until if isinstance(until, timedelta) else until).astimezone(UTC)
