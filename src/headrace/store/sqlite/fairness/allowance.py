"""What the limits leave free: rules, units held by leases, and buckets, as one claim or settlement sees and changes them.

Lanes without limit keys never come here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from headrace.model.lane import split_limit
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.engine.wakeup import ALL
from headrace.store.sqlite.lease import LeaseRow
from headrace.store.sqlite.rows import Bulk, as_json

_SQL = load("limit")
_KEEP = Bulk(_SQL["keep"])
_decode = msgspec.json.Decoder(list[tuple[str, int, float | None, int, int, int | None]]).decode
_DUST = 1e-6
"""Units that rounding may have lost."""
_SECOND = 1_000_000
_AHEAD = 10 * _SECOND
"""A bucket that was drawn from so much later than now is from before the clock was set back: it counts as full."""
_SPARE = 3600 * _SECOND
"""A bucket is remembered this long after it is full, in case its rule changes."""
_CENTURY = 100 * 365 * 86_400
_MANY = 20_000
PLENTY = 1 << 40


class Unit(NamedTuple):
    """A limit key as a lane needs it."""

    name: str
    key: str
    cost: int


class Rule(NamedTuple):
    concurrency: int | None
    rate: float | None
    burst: float
    closed_until: int | None


_units_of_lane: dict[int, tuple[Unit, ...]] = {}
"""For all stores: the id of a lane is a hash of its limit keys, so an entry never becomes wrong."""


def units_of(limits: Iterable[str]) -> tuple[Unit, ...]:
    costs: dict[tuple[str, str], int] = {}
    for limit in limits:
        name, key, cost = split_limit(limit)
        costs[name, key] = costs.get((name, key), 0) + cost
    return tuple(Unit(name, key, cost) for (name, key), cost in costs.items() if cost > 0)


def units_of_lanes(tx: Tx, jobs: Mapping[int, int]) -> dict[int, tuple[Unit, ...]]:
    """What jobs of each lane need. `jobs`: lane id → the key of any job in it."""
    known = {lane: units for lane in jobs if (units := _units_of_lane.get(lane)) is not None}
    unknown = [key for lane, key in jobs.items() if lane not in known]
    if unknown:
        if len(_units_of_lane) > _MANY:
            _units_of_lane.clear()
        for lane, limits in tx.cur.execute(_SQL["lanes"], (str(unknown),)).fetchall():
            units = units_of(msgspec.json.decode(limits or "[]", type=list[str]))
            known[lane] = _units_of_lane[lane] = units
    return known


class Rules:
    """The rules, which a store object remembers until one of them changes."""

    def __init__(self) -> None:
        self._as_of = -1
        self._rules: dict[str, Rule] = {}

    def refresh(self, tx: Tx) -> None:
        row = tx.cur.execute(_SQL["changed"]).fetchone()
        as_of = 0 if row is None else row[0]
        if as_of != self._as_of:
            self._rules = {name: Rule(*rest) for name, *rest in tx.cur.execute(_SQL["rules"]).fetchall()}
            self._as_of = as_of

    def of(self, unit: Unit) -> Rule | None:
        return self._rules.get(unit.key) or self._rules.get(unit.name)


@dataclass(slots=True)
class State:
    """The units and the bucket of a limit key."""

    held: int = 0
    level: float | None = None
    at: int = 0
    blocked: int = 0
    full_at: int | None = None
    changed: bool = False

    def units(self, rule: Rule, now: int) -> float:
        """What is in the bucket."""
        if self.level is None or self.at - now > _AHEAD:
            return rule.burst
        return min(rule.burst, self.level + (rule.rate or 0.0) * (now - self.at) / _SECOND)


class Obstacle(NamedTuple):
    """Why a lane's next job may not run."""

    key: str
    concurrency: int | None
    held: int
    opens_at: int | None
    never: bool = False


def obstacles(unit: Unit, rule: Rule, state: State, now: int) -> list[Obstacle]:
    if rule.closed_until is not None and rule.closed_until > now:
        return [Obstacle(unit.key, None, 0, rule.closed_until)]
    reasons: list[Obstacle] = []
    if rule.closed_until is not None and state.held:
        reasons.append(Obstacle(unit.key, unit.cost, state.held, None))
    elif rule.concurrency is not None and state.held + unit.cost > rule.concurrency:
        reasons.append(Obstacle(unit.key, rule.concurrency, state.held, None, unit.cost > rule.concurrency))
    if rule.rate is not None and (missing := unit.cost - state.units(rule, now)) > _DUST:
        never = unit.cost - rule.burst > _DUST
        reasons.append(Obstacle(unit.key, None, 0, None if never else later(now, missing, rule.rate), never))
    return reasons


def later(now: int, units: float, rate: float) -> int:
    """When so many units will have come; with a rate of next to nothing, in the far future."""
    seconds = units / rate if rate * _CENTURY > units else _CENTURY
    return now + math.ceil(seconds * _SECOND)


class Allowance:
    """The limits as one claim sees and changes them."""

    def __init__(self, tx: Tx, rules: Rules) -> None:
        self._tx = tx
        self._rules = rules
        self._fresh = False
        self._units: dict[int, tuple[Unit, ...]] = {}
        self._states: dict[str, State] = {}
        self.opens_at: int | None = None
        """When the first lane that was passed over will be free, as far as that is a matter of time."""

    def prepare(self, jobs: Mapping[int, int]) -> None:
        """Read what lanes need, many at once. `jobs`: lane id → the key of any job in it."""
        if jobs.keys() <= self._units.keys():
            return
        if not self._fresh:
            self._rules.refresh(self._tx)
            self._fresh = True
        self._units |= units_of_lanes(self._tx, jobs)
        keys = {unit.key for lane in jobs for unit in self._units[lane]} - self._states.keys()
        if keys:
            self._states.update(read(self._tx, keys))

    def units(self, lane: int) -> tuple[tuple[str, int], ...]:
        """What a job of a lane holds, as its lease carries it."""
        return tuple([(unit.key, unit.cost) for unit in self._units[lane]])

    def free(self, lane: int) -> int:
        """How many jobs of a lane may begin now."""
        least = PLENTY
        for unit in self._units[lane]:
            rule = self._rules.of(unit)
            if rule is None:
                continue
            state = self._states[unit.key]
            if rule.closed_until is not None:
                if rule.closed_until > self._tx.now or state.held:
                    return 0
                least = min(least, 1)
            if rule.concurrency is not None:
                least = min(least, (rule.concurrency - state.held) // unit.cost)
            if rule.rate is not None:
                least = min(least, int((state.units(rule, self._tx.now) + _DUST) / unit.cost))
        return max(least, 0)

    def take(self, lane: int, count: int) -> None:
        """So many jobs of a lane begin."""
        now = self._tx.now
        for unit in self._units[lane]:
            state = self._states[unit.key]
            state.held += unit.cost * count
            state.changed = True
            rule = self._rules.of(unit)
            if rule is not None and rule.rate is not None:
                state.level = state.units(rule, now) - unit.cost * count
                state.at = now
                state.full_at = later(now, rule.burst - state.level, rule.rate) + _SPARE

    def passed_over(self, lane: int) -> None:
        """A lane has more jobs than may begin now."""
        now = self._tx.now
        times: list[int | None] = []
        for unit in self._units[lane]:
            rule = self._rules.of(unit)
            if rule is None:
                continue
            state = self._states[unit.key]
            for obstacle in obstacles(unit, rule, state, now):
                times.append(obstacle.opens_at)
                if obstacle.concurrency is not None and state.held and not state.blocked:
                    state.blocked, state.changed = 1, True
        known = [time for time in times if time is not None]
        if known and len(known) == len(times):
            self.opens_at = max(known) if self.opens_at is None else min(self.opens_at, max(known))

    def write(self) -> None:
        _write(self._tx, self._states)


def read(tx: Tx, keys: Iterable[str]) -> dict[str, State]:
    """The states of limit keys, all of them."""
    states = {key: State() for key in keys}
    (text,) = tx.cur.execute(_SQL["units"], (as_json(list(states)),)).fetchone()
    for key, held, level, at, blocked, full_at in _decode(text):
        states[key] = State(held, level, at, blocked, full_at)
    return states


def _write(tx: Tx, states: Mapping[str, State]) -> None:
    kept = [
        (key, state.held, state.level, state.at, state.full_at, state.blocked)
        for key, state in sorted(states.items())
        if state.changed and (state.held or state.level is not None)
    ]
    _KEEP.insert(tx.cur, kept)
    gone = [key for key, state in states.items() if state.changed and not state.held and state.level is None]
    if gone:
        tx.cur.execute(_SQL["forget"], (as_json(gone),))


def give_back(tx: Tx, lease: LeaseRow, positions: Iterable[int]) -> None:
    """These positions are settled. Jobs that were passed over for want of their units may be claimed."""
    places = lease.ranges.places
    if not any(place.lane for place in places):
        return
    spread = lease.ranges.spread()
    settled = Counter([spread[position].place for position in positions])
    back: dict[str, int] = {}
    units_by_lane = units_held(tx, lease)
    for place, count in settled.items():
        for key, cost in units_by_lane.get(places[place].lane, ()):
            back[key] = back.get(key, 0) + cost * count
    if not back:
        return
    states = read(tx, back)
    for key, units in back.items():
        state = states[key]
        if state.blocked:
            tx.depth.awake.add(ALL)
        state.held, state.blocked, state.changed = max(state.held - units, 0), 0, True
    _write(tx, states)


def units_held(tx: Tx, lease: LeaseRow) -> dict[int, tuple[tuple[str, int], ...]]:
    """What a job of each limited lane of a lease holds: lane id → (limit key, units)."""
    by_lane: dict[int, tuple[tuple[str, int], ...]] = {}
    unknown: dict[int, list[int]] = {}
    for number, place in enumerate(lease.ranges.places):
        if place.units is not None:
            by_lane[place.lane] = place.units
        elif place.lane:
            unknown.setdefault(place.lane, []).extend(_keys(lease, number))
    if unknown:
        by_lane.update(_units_by_jobs(tx, unknown))
    return by_lane


def _keys(lease: LeaseRow, place: int) -> Iterable[int]:
    return (key for held in lease.ranges.held if held.place == place for key in range(held.lo, held.lo + held.size))


def _units_by_jobs(tx: Tx, jobs: Mapping[int, list[int]]) -> dict[int, tuple[tuple[str, int], ...]]:
    """For leases of an earlier version: any of the lane's jobs tells. Settled ones may be deleted, so all are asked for."""
    rows = tx.cur.execute(_SQL["lanes"], (str([key for keys in jobs.values() for key in keys]),)).fetchall()
    limits = {lane: units_of(msgspec.json.decode(text or "[]", type=list[str])) for lane, text in rows}
    return {lane: tuple((unit.key, unit.cost) for unit in units) for lane, units in limits.items()}
