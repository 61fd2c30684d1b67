"""What limit keys leave free: rules, the units that leases hold, the buckets of rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from headrace.model.lane import Blocked, Lane, split_limit
from headrace.model.records import LimitRule

_DUST = 1e-6
"""Units that rounding may have lost."""
_AHEAD = timedelta(seconds=10)
"""A bucket that was drawn from so much later than now is from before the clock was set back: it counts as full."""


class Limits:
    def __init__(self) -> None:
        self.rules: dict[str, LimitRule] = {}
        self._held: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, datetime]] = {}

    def rule(self, name: str, key: str) -> LimitRule | None:
        return self.rules.get(key) or self.rules.get(name)

    def blocked(self, lane: Lane, now: datetime) -> list[Blocked]:
        """The keys that keep the next job of this lane from running; empty: it may."""
        blocks: list[Blocked] = []
        for limit in lane.limits:
            name, key, cost = split_limit(limit)
            rule = self.rule(name, key)
            if rule is None:
                continue
            if rule.closed_until is not None and rule.closed_until > now:
                blocks.append(Blocked(key=key, opens_at=rule.closed_until))
                continue
            held = self._held[key]
            if rule.closed_until is not None and held:
                blocks.append(Blocked(key=key, concurrency=cost, held=held))
            elif rule.concurrency is not None and held + cost > rule.concurrency:
                never = cost > rule.concurrency
                blocks.append(Blocked(key=key, concurrency=rule.concurrency, held=held, never=never))
            if rule.rate is not None and (missing := cost - self._units(key, rule, now)) > _DUST:
                never = cost - rule.burst > _DUST
                wait = timedelta(0) if never else timedelta(microseconds=math.ceil(missing / rule.rate * 1e6))
                blocks.append(Blocked(key=key, opens_at=None if never else now + wait, never=never))
        return blocks

    def take(self, lane: Lane, now: datetime) -> None:
        """One job of this lane begins."""
        for limit in lane.limits:
            name, key, cost = split_limit(limit)
            self._held[key] += cost
            rule = self.rule(name, key)
            if rule is not None and rule.rate is not None:
                self._buckets[key] = self._units(key, rule, now) - cost, now

    def give_back(self, lane: Lane) -> None:
        """One job of this lane is settled. What it drew from a bucket stays drawn."""
        for limit in lane.limits:
            _, key, cost = split_limit(limit)
            self._held[key] -= cost
            if not self._held[key]:
                del self._held[key]

    def _units(self, key: str, rule: LimitRule, now: datetime) -> float:
        units, at = self._buckets.get(key, (rule.burst, now))
        if at - now > _AHEAD:
            return rule.burst
        return min(rule.burst, units + (rule.rate or 0.0) * (now - at).total_seconds())


def uses(lane: Lane, key: str) -> bool:
    """Whether a job of this lane needs units of this key."""
    return key in units_of(lane.limits)


def units_of(limits: Iterable[str]) -> set[str]:
    return {split_limit(limit)[1] for limit in limits}
