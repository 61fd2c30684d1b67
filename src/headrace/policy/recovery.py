"""How a limit recovers: what a store keeps of it, what it allows, and how each job changes it. No effects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import floor

import msgspec

from headrace.task.limit import LimitDeclaration, LimitFigures, burst_of

LEAST_FACTOR = 1 / 64
"""The smallest factor. Further refusals do not reduce the limit."""
GROWTH = 0.05
"""How much the factor of a reduced limit rises after a second with a success."""
GROWS_EVERY = timedelta(seconds=1)
RESTS_EVERY = timedelta(minutes=1)
"""The factor of a reduced limit also rises by GROWTH after each such period, whether or not its jobs succeed."""
QUIET = timedelta(days=1)
"""A limit without observations for this long counts as recovered."""
LONGEST_COOL_DOWN = timedelta(minutes=5)

# ── what is kept of a limit in a store ───────────────────────────────────────


class LimitHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The health of a limit. The default: it was never closed, or it has recovered."""

    factor: float = 1.0
    """The fraction of the figures that is allowed."""
    closed_at: datetime | None = None
    """Jobs that were claimed before this time no longer affect it."""
    closed_until: datetime | None = None
    """The limit is closed until this time. After it, one job at a time runs until one succeeds. None: it is open."""
    closings: int = 0
    """Closings in a row, without a success in between."""
    failures: int = 0
    """Failures in a row, while it is open."""
    grown_at: datetime | None = None
    failed_at: datetime | None = None
    """The time of the last failure."""


WELL = LimitHealth()


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declaration and health of a limit, as its rule's `state` keeps them."""

    declared: LimitDeclaration | None = None
    """None: no code has declared it yet, or this is one key and its limit's declaration counts."""
    override: LimitFigures | None = None
    """The figures that an operator has set in place of the declared ones."""
    health: LimitHealth = WELL


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(State).decode


def pack(state: State) -> bytes:
    """For `LimitRule.state`."""
    return _encode(state)


def unpack(data: bytes) -> State:
    """Read what `pack` made. Anything else counts as an unknown limit."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return State()


# ── what it allows ───────────────────────────────────────────────────────────


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit allows right now. While it is half open (`closed_until` has passed), one job at a time may run."""

    concurrency: int | None = None
    rate: float | None = None
    burst: float = 1.0
    closed_until: datetime | None = None


def figures_of(declared: LimitDeclaration | None, override: LimitFigures | None) -> LimitFigures:
    """The figures that count. An operator's figure replaces the declared one."""
    usual = LimitFigures() if declared is None else declared.figures
    if override is None:
        return usual
    rate = usual.rate if override.rate is None else override.rate
    # A declared burst fits the declared rate. It stays unless an operator sets another one.
    return LimitFigures(
        concurrency=usual.concurrency if override.concurrency is None else override.concurrency,
        rate=rate,
        burst=usual.burst if override.burst is None else override.burst,
    )


def rule_of(declared: LimitDeclaration | None, override: LimitFigures | None, health: LimitHealth) -> Allowed:
    """What a limit allows: its figures, reduced by its health."""
    figures = figures_of(declared, override)
    cost = 1 if declared is None else declared.cost
    # While half open, the first job runs alone, whatever its cost. Stores enforce that by `closed_until`.
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


# ── how a limit changes ──────────────────────────────────────────────────────


class What(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    """The service behind the limit refused a call, until a given time."""


class LimitObservation(msgspec.Struct, frozen=True):
    """The outcome of one job that needed the limit."""

    what: What
    claimed_at: datetime
    until: datetime | None = None
    """REFUSED until then."""


def rested(health: LimitHealth, now: datetime) -> LimitHealth:
    """The health of a limit after some time, without regard to its jobs."""
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
    """The health of a limit after the outcome of one job. All workers compute the same from the stored health."""
    health = rested(health, now)
    match seen.what:
        case What.REFUSED:
            until = max(seen.until or now, now)
            if _was_under_way(health, seen):
                # The job was claimed before the limit was closed, so it can only extend the time.
                if health.closed_until is None or until <= health.closed_until:
                    return health
                return msgspec.structs.replace(health, closed_until=until)
            return _closed(health, until, now)
        case What.FAILED:
            return _failed(health, seen, declared, now)
        case What.SUCCEEDED:
            return _succeeded(health, seen, now)


def _was_under_way(health: LimitHealth, seen: LimitObservation) -> bool:
    """Whether this job was claimed before the limit was closed. No job is claimed while it is closed."""
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
            return health  # The job was claimed before the limit closed and proves nothing.
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
    """A time in UTC from a task's argument."""
    return (now + until if isinstance(until, timedelta) else until).astimezone(UTC)
