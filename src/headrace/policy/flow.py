"""FLOW: which waiting jobs come first. Turns policies and tenants' shares into claim arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from math import floor, gcd
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY, LaneView, check_priority
from headrace.model.lease import MAX_WEIGHT, Band

Fair = Literal["round_robin", "proportional", "off"]
FairBy = Literal["jobs", "time"]

BANDS: Final[Mapping[str, int]] = {"high": 1, "normal": 0, "low": LOWEST_PRIORITY}
"""Names of bands → the priority where each begins. A band ends where the next higher one begins."""

MAX_SHARE = 10_000


# ── policies, as a queue declares them ───────────────────────────────────────


class Strict(msgspec.Struct, frozen=True):
    """The highest priority first, always."""

    def __str__(self) -> str:
        return "strict"


class Ageing(msgspec.Struct, frozen=True):
    """The highest priority first. Each period of waiting raises the priority by one."""

    every: timedelta

    def __str__(self) -> str:
        return f"ageing({duration.show(self.every)})"


class Weighted(msgspec.Struct, frozen=True):
    """Each band of priorities gets its share of the started jobs, as long as it has jobs."""

    shares: tuple[tuple[int, int], ...]
    """(where the band begins, its share), the highest band first."""

    def __str__(self) -> str:
        return f"weighted({', '.join(f'{name_of(lowest)}: {share}' for lowest, share in self.shares)})"


Priority = Strict | Ageing | Weighted
STRICT: Final = Strict()


def ageing(every: duration.Duration) -> Ageing:
    """The policy for `app.queue(…, priority=ageing("1m"))`: +1 for every minute that a lane's first job has waited."""
    if not isinstance(every, str | timedelta):
        raise ConfigError(f'ageing({every!r}): write how long a job waits for one more, e.g. ageing("1m")')
    interval = duration.parse(every, name="ageing")
    if interval < timedelta(milliseconds=1):
        raise ConfigError(f'ageing({every!r}): must be more than 0, e.g. ageing("1m")')
    return Ageing(interval)


def weighted(shares: Mapping[str, int] | Mapping[int, int] | Mapping[str | int, int]) -> Weighted:
    """The policy for `app.queue(…, priority=weighted({"high": 80, "low": 20}))`.

    Bands: `high` (priority 1 and up), `normal` (0) and `low` (below), or the lowest priority of each as a number. A
    priority belongs to the highest band that begins at or under it; the lowest band includes everything below.
    """
    if not isinstance(shares, Mapping) or not shares:
        raise ConfigError(
            f'weighted({shares!r}): a mapping of bands to shares, e.g. weighted({{"high": 80, "low": 20}})'
        )
    bands: dict[int, int] = {}
    for band, share in shares.items():
        lowest = begin_of(band, "weighted")
        if isinstance(share, bool) or not isinstance(share, int) or not 1 <= share <= MAX_SHARE:
            raise ConfigError(
                f"weighted: {band!r} has the share {share!r}: a whole number from 1 to {MAX_SHARE:,}; "
                "leave a band out that needs no share of its own"
            )
        if lowest in bands:
            raise ConfigError(f"weighted: two bands begin at priority {lowest}: give each its own")
        bands[lowest] = share
    return Weighted(tuple(sorted(bands.items(), reverse=True)))


def begin_of(band: str | int, where: str) -> int:
    """Where a band begins, from its name or its lowest priority."""
    if isinstance(band, str):
        if band not in BANDS:
            raise ConfigError(
                f"{where}: {band!r} is not a band: {', '.join(BANDS)}, or the lowest priority of the band"
            )
        return BANDS[band]
    try:
        return check_priority(band)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def name_of(lowest: int) -> str:
    """A band's name for display."""
    return next((name for name, begin in BANDS.items() if begin == lowest), str(lowest))


def check_policy(value: object) -> Priority:
    """A queue's `priority=`, or a ConfigError."""
    if isinstance(value, Strict | Ageing | Weighted):
        return value
    if value == "strict":
        return STRICT
    hint = {"ageing": 'write ageing("1m")', "weighted": 'write weighted({"high": 80, "low": 20})'}
    usual = 'write "strict", ageing("1m") or weighted({"high": 80, "low": 20})'
    raise ConfigError(f"priority = {value!r}: {hint.get(str(value), usual)}")


def bounds(shares: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(lowest, highest) of each band, the highest band first; the last one includes everything below."""
    begins = [lowest for lowest, _ in shares]
    return list(
        zip([*begins[:-1], LOWEST_PRIORITY], [HIGHEST_PRIORITY, *(begin - 1 for begin in begins[:-1])], strict=True)
    )


# ── shares ───────────────────────────────────────────────────────────────────


class Shares:
    """Divides claims of any size by weights: smooth weighted round robin, so claims of one job keep the shares."""

    def __init__(self, weights: Sequence[int]) -> None:
        divisor = gcd(*weights)
        self._weights = [weight // divisor for weight in weights]
        self._total = sum(self._weights)
        self._due = [0] * len(weights)

    def split(self, count: int) -> list[int]:
        """Divide `count` between the weights."""
        rounds, rest = divmod(count, self._total)
        given = [weight * rounds for weight in self._weights]
        for _ in range(rest):
            self._due = [due + weight for due, weight in zip(self._due, self._weights, strict=True)]
            place = self._due.index(max(self._due))
            self._due[place] -= self._total
            given[place] += 1
        return given


class RunTimes:
    """How long each tenant's jobs run, as a moving average. The tenant that was unseen for longest is dropped."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._seconds: dict[str, float] = {}

    def note(self, tenant: str, seconds: float) -> None:
        known = self._seconds.pop(tenant, None)
        # A job takes a slot for some time even if it does nothing. Without a minimum the quickest tenant would get
        # everything.
        fresh = max(seconds, _SHORTEST_RUN)
        self._seconds[tenant] = fresh if known is None else known + (fresh - known) * _FRESHNESS
        if len(self._seconds) > self._most:
            del self._seconds[next(iter(self._seconds))]

    def weights(self, usual: Mapping[str, int], rand: Callable[[], float] = random.random) -> dict[str, int]:
        """Jobs per turn, so that all turns take the same time, multiplied by each tenant's own weight."""
        return in_turns({tenant: usual.get(tenant, 1) / mean for tenant, mean in self._seconds.items()}, rand)


_FRESHNESS = 0.1
_SHORTEST_RUN = 0.0005


def in_turns(speeds: Mapping[str, float], rand: Callable[[], float] = random.random) -> dict[str, int]:
    """Whole jobs per turn from any figures, the smallest as 1. Fractions are exact on average over many claims."""
    if not speeds:
        return {}
    least = min(speeds.values())
    weights = {name: min(int(speed / least + rand()), MAX_WEIGHT) for name, speed in speeds.items()}
    return {name: weight for name, weight in weights.items() if weight > 1}


# ── the planner ──────────────────────────────────────────────────────────────


class Rules(Protocol):
    """The part of a queue's options that the planner reads."""

    @property
    def fair(self) -> Fair: ...
    @property
    def fair_by(self) -> FairBy: ...
    @property
    def weights(self) -> Mapping[str, int]: ...
    @property
    def priority(self) -> Priority: ...


class ClaimOrder(NamedTuple):
    """The policies as arguments of a claim."""

    bands: tuple[Band, ...] = ()
    weights: Mapping[str, Mapping[str, int]] = {}


_DRAWN_FOR = 15
"""Claims for which measured weights are used again, because computing them takes longer than a quick claim."""

MAX_BANDS = 64
"""Bands in one claim. Further levels are served in the order of their priority."""


class Planner:
    """Turns the policies of the queues that a worker serves into bands and weights, claim by claim."""

    def __init__(
        self, queues: Sequence[str], options: Mapping[str, Rules], rand: Callable[[], float] = random.random
    ) -> None:
        self._rand = rand
        self._weighted: dict[str, tuple[Weighted, Shares]] = {}
        self._ageing: dict[str, Ageing] = {}
        self._fixed: dict[str, Mapping[str, int]] = {}
        self._timed: dict[str, tuple[RunTimes, Mapping[str, int]]] = {}
        self._proportional: list[str] = []
        for queue in queues:
            if (rules := options.get(queue)) is not None:
                self._add(queue, rules)
        self._strict = tuple(queue for queue in queues if queue not in self._weighted and queue not in self._ageing)
        self._turns = Shares(self._group_sizes()) if len(self._group_sizes()) > 1 else None
        self.watched = tuple(dict.fromkeys((*self._ageing, *self._proportional)))
        """Queues whose lanes the planner must read regularly."""
        self._views: Sequence[LaneView] = ()
        self._seen_at: datetime | None = None
        self._drawn: dict[str, Mapping[str, int]] = {}
        self._draw_in = 0

    def _add(self, queue: str, rules: Rules) -> None:
        match rules.priority:
            case Weighted() as policy:
                self._weighted[queue] = policy, Shares([share for _, share in policy.shares])
            case Ageing() as policy:
                self._ageing[queue] = policy
            case Strict():
                pass
        if rules.fair == "proportional":
            self._proportional.append(queue)
        elif rules.fair == "round_robin" and rules.fair_by == "time":
            self._timed[queue] = RunTimes(), rules.weights
        elif rules.weights:
            self._fixed[queue] = {tenant: weight for tenant, weight in rules.weights.items() if weight > 1}

    @property
    def timed(self) -> frozenset[str]:
        """Queues whose jobs' run times the planner needs."""
        return frozenset(self._timed)

    def ran(self, queue: str, tenant: str, seconds: float) -> None:
        """A job of one of the `timed` queues ran for so long."""
        self._timed[queue][0].note(tenant, seconds)

    def saw(self, views: Sequence[LaneView], now: datetime) -> None:
        """Take the current lanes of the `watched` queues."""
        self._views, self._seen_at, self._draw_in = views, now, 0

    def plan(self, limit: int) -> ClaimOrder:
        """The order for a claim of up to `limit` jobs."""
        return ClaimOrder(self._bands(limit), self._weights())

    # ── priorities ──────────────────────────────────────────────────────────
    def _group_sizes(self) -> list[int]:
        """Sizes of the groups. Queues of one policy form a group with common priorities; a weighted queue is alone."""
        sizes = [len(self._strict), *(1 for _ in self._weighted), len(self._ageing)]
        return [size for size in sizes if size]

    def _bands(self, limit: int) -> tuple[Band, ...]:
        if not self._weighted and not self._ageing:
            return ()
        shares = iter([limit] if self._turns is None else self._turns.split(limit))
        bands: list[Band] = []
        if self._strict:
            bands.append(Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, next(shares), self._strict))
        for queue, (policy, split) in self._weighted.items():
            counts = split.split(next(shares))
            for (lowest, highest), count in zip(bounds(policy.shares), counts, strict=True):
                bands.append(Band(lowest, highest, count, (queue,)))
        if self._ageing:
            # Last, because all its bands use one share, and bands beyond the maximum are cut off.
            bands += self._by_age(next(shares))
        return tuple([band for band in bands if band.share > 0][:MAX_BANDS])

    def _by_age(self, share: int) -> list[Band]:
        """Bands in the order of priority plus age. Unseen levels are new and count by priority alone."""
        queues = tuple(self._ageing)
        bands: list[Band] = []
        unseen = HIGHEST_PRIORITY
        for rank, queue, priority in self._levels():
            first = min(floor(rank), HIGHEST_PRIORITY) + 1
            if first <= unseen:
                bands.append(Band(first, unseen, share, queues))
                unseen = first - 1
            bands.append(Band(priority, priority, share, (queue,)))
        return bands

    def _levels(self) -> list[tuple[float, str, int]]:
        """(priority plus age, queue, priority), the highest first."""
        oldest: dict[tuple[str, int], datetime] = {}
        for view in self._views:
            if view.queue in self._ageing:
                level = view.queue, view.priority
                oldest[level] = min(oldest.get(level, view.oldest), view.oldest)
        now = self._seen_at
        if now is None:
            return []
        return sorted(
            (
                (priority + max(now - since, timedelta(0)) / self._ageing[queue].every, queue, priority)
                for (queue, priority), since in oldest.items()
            ),
            reverse=True,
        )

    # ── tenants ─────────────────────────────────────────────────────────────
    def _weights(self) -> Mapping[str, Mapping[str, int]]:
        if not self._timed and not self._proportional:
            return self._fixed
        if self._draw_in:
            self._draw_in -= 1
            return self._drawn
        self._draw_in = _DRAWN_FOR
        weights = self._drawn = dict(self._fixed)
        for queue, (times, usual) in self._timed.items():
            weights[queue] = times.weights(usual, self._rand)
        for queue in self._proportional:
            waiting: dict[str, float] = {}
            for view in self._views:
                if view.queue == queue:
                    waiting[view.tenant] = waiting.get(view.tenant, 0) + view.jobs
            weights[queue] = in_turns(waiting, self._rand)
        return weights
