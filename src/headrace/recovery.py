"""How a limit recovers: what is kept of it in a store, what it allows, and what becomes of it after each job. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import floor

import msgspec

from headrace.limit import Declared, Figures, burst_of

LEAST_FACTOR = 1 / 64
"""However often a limit is refused, so much of it is left."""
GROWTH = 0.05
"""What a second with successes gives back of a limit that was cut down."""
GROWS_EVERY = timedelta(seconds=1)
LONGEST_COOL_DOWN = timedelta(minutes=5)

# ── what is kept of a limit in a store ───────────────────────────────────────


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a limit has been through. The default: nothing, or it has recovered."""

    factor: float = 1.0
    """How much of the figures is allowed."""
    closed_at: datetime | None = None
    closed_until: datetime | None = None
    """It has been closed; one job at a time from then on, until one succeeds. None: it is open."""
    closings: int = 0
    """In a row, without a success in between."""
    failures: int = 0
    """In a row, while it is open."""
    grown_at: datetime | None = None


WELL = Health()


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is known of a limit, as its rule's `state` keeps it."""

    declared: Declared | None = None
    """None: no code has declared it (yet); or, of a whole key, its limit's counts."""
    override: Figures | None = None
    """What an operator has set in place of the declared figures."""
    health: Health = WELL


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
    """What a limit allows right now."""

    concurrency: int | None = None
    rate: float | None = None
    burst: float = 1.0
    closed_until: datetime | None = None


def figures_of(declared: Declared | None, override: Figures | None) -> Figures:
    """What counts: an operator's word, where there is one, stands for the code's."""
    usual = Figures() if declared is None else declared.figures
    if override is None:
        return usual
    rate = usual.rate if override.rate is None else override.rate
    # A declared burst was chosen for the declared rate: it stays unless another one is set.
    return Figures(
        concurrency=usual.concurrency if override.concurrency is None else override.concurrency,
        rate=rate,
        burst=usual.burst if override.burst is None else override.burst,
    )


def rule_of(declared: Declared | None, override: Figures | None, health: Health) -> Allowed:
    """What a limit allows: its figures, cut down by what it has been through."""
    figures = figures_of(declared, override)
    cost = 1 if declared is None else declared.cost
    if health.closed_until is not None:
        concurrency: int | None = cost
        if figures.concurrency is not None:
            concurrency = min(cost, figures.concurrency)
    elif figures.concurrency is None:
        concurrency = None
    else:
        concurrency = max(floor(figures.concurrency * health.factor), min(cost, figures.concurrency))
    burst = float(burst_of(figures, cost))
    if figures.rate is None:
        return Allowed(concurrency=concurrency, burst=burst, closed_until=health.closed_until)
    # One job must always fit into the bucket, or it could never run.
    burst = max(floor(burst * health.factor), min(float(cost), burst))
    return Allowed(
        concurrency=concurrency, rate=figures.rate * health.factor, burst=burst, closed_until=health.closed_until
    )


# ── what becomes of a limit ──────────────────────────────────────────────────


class What(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED = "refused"
    """By whom the limit protects: with a time."""


class Seen(msgspec.Struct, frozen=True):
    """What became of one job that needed the limit."""

    what: What
    claimed_at: datetime
    until: datetime | None = None
    """REFUSED until then."""


def after(health: Health, seen: Seen, declared: Declared, now: datetime) -> Health:
    """How a limit is after what became of one job. The same answers everywhere: workers agree through the store."""
    match seen.what:
        case What.REFUSED:
            until = max(seen.until or now, now)
            if health.closed_at is not None and seen.claimed_at < health.closed_at:
                # It was under way when the limit was closed: no news but for the time.
                if health.closed_until is None or until <= health.closed_until:
                    return health
                return msgspec.structs.replace(health, closed_until=until)
            return _closed(health, until, now)
        case What.FAILED:
            return _failed(health, seen, declared, now)
        case What.SUCCEEDED:
            return _succeeded(health, seen, now)


def _closed(health: Health, until: datetime, now: datetime) -> Health:
    return Health(
        factor=max(health.factor / 2, LEAST_FACTOR),
        closed_at=now,
        closed_until=until,
        closings=health.closings + 1,
    )


def _failed(health: Health, seen: Seen, declared: Declared, now: datetime) -> Health:
    if declared.breaker is None or (health.closed_at is not None and seen.claimed_at < health.closed_at):
        return health
    failures = health.failures + 1
    probing = health.closed_until is not None
    if not probing and failures < declared.breaker:
        return msgspec.structs.replace(health, failures=failures)
    cool_down = timedelta(seconds=declared.cool_down * 2 ** min(health.closings, 30))
    return _closed(health, now + max(min(cool_down, LONGEST_COOL_DOWN), timedelta(seconds=declared.cool_down)), now)


def _succeeded(health: Health, seen: Seen, now: datetime) -> Health:
    if health == WELL:
        return health
    if health.closed_until is not None:
        if seen.claimed_at < health.closed_until:
            return health  # it was under way before: no proof
        return Health(factor=health.factor, closed_at=health.closed_at, grown_at=now)
    if health.factor >= 1.0:
        return WELL
    if health.closed_at is not None and seen.claimed_at < health.closed_at:
        return health
    if health.grown_at is not None and now - health.grown_at < GROWS_EVERY:
        return health if not health.failures else msgspec.structs.replace(health, failures=0)
    factor = health.factor + GROWTH
    if factor >= 1.0:
        return WELL
    return msgspec.structs.replace(health, factor=factor, grown_at=now, failures=0)


def moment(until: timedelta | datetime, now: datetime) -> datetime:
    """A time in UTC from what a task gave."""
    return (now + until if isinstance(until, timedelta) else until).astimezone(UTC)
