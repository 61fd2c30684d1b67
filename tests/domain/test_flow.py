"""Policies: what is refused where it is declared, and, as properties, the shares that come of a planner's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ageing, weighted
from headrace.errors import ConfigError
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY, LaneView
from headrace.model.lease import MAX_WEIGHT, Band
from headrace.policy.flow import (
    MAX_BANDS,
    STRICT,
    Ageing,
    Planner,
    RunTimes,
    Shares,
    Weighted,
    bounds,
    check_policy,
    in_turns,
)
from headrace.policy.queue import QueueOptions, declare
from headrace.policy.reserve import Reserve, parse_reserve, room

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def view(
    priority: int, *, waited: timedelta = timedelta(0), queue: str = "q", tenant: str = "", jobs: int = 1
) -> LaneView:
    return LaneView(queue=queue, priority=priority, tenant=tenant, id=0, jobs=jobs, oldest=NOW - waited)


def planner(*queues: QueueOptions, more: tuple[str, ...] = ()) -> Planner:
    options = {each.name: each for each in queues}
    return Planner((*options, *more), options, rand=lambda: 0.5)


# ── declared ─────────────────────────────────────────────────────────────────


def test_policies():
    assert ageing("1m") == Ageing(MINUTE)
    assert weighted({"low": 20, "high": 80}) == Weighted(((1, 80), (LOWEST_PRIORITY, 20)))
    assert weighted({5: 1, 0: 2, -5: 3}) == Weighted(((5, 1), (0, 2), (-5, 3)))
    assert check_policy("strict") is STRICT
    assert [str(each) for each in (STRICT, ageing("90s"), weighted({"high": 8, 7: 2}))] == [
        "strict",
        "ageing(90s)",
        "weighted(7: 2, high: 8)",
    ]


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (lambda: ageing(60), r'ageing\(60\): write how long.*ageing\("1m"\)'),  # type: ignore[arg-type]  # nonsense
        (lambda: ageing("0s"), "must be more than 0"),
        (lambda: ageing("soon"), "is not a duration"),
        (lambda: weighted({}), "a mapping of bands to shares"),
        (lambda: weighted([("high", 1)]), "a mapping of bands"),  # type: ignore[arg-type]  # nonsense
        (lambda: weighted({"urgent": 1}), "'urgent' is not a band: high, normal, low"),
        (lambda: weighted({"high": 0}), "share 0: a whole number from 1"),
        (lambda: weighted({"high": -2}), "share -2"),
        (lambda: weighted({"high": True}), "share True"),
        (lambda: weighted({"high": 2, 1: 3}), "two bands begin at priority 1"),
        (lambda: weighted({2000: 3}), "weighted: priority = 2000"),
        (lambda: declare("q", priority="fair"), r'priority = \'fair\': write "strict", ageing'),
        (lambda: declare("q", priority="ageing"), r'write ageing\("1m"\)'),
        (lambda: declare("q", priority=5), "priority = 5"),  # type: ignore[arg-type]  # nonsense
        (lambda: declare("q", fair="roundrobin"), "one of round_robin, proportional, off"),  # type: ignore[arg-type]  # nonsense
        (lambda: declare("q", fair_by="bytes"), "one of jobs, time"),  # type: ignore[arg-type]  # nonsense
        (lambda: declare("q", weights={"acme": -1}), "tenant 'acme' has -1: a whole number from 1 to 100"),
        (lambda: declare("q", weights={"acme": 0}), "has 0"),
        (lambda: declare("q", weights={"acme": 101}), "has 101"),
        (lambda: declare("q", weights={"acme": True}), "has True"),
        (lambda: declare("q", weights={"a b": 1}), "is not a valid tenant"),
        (lambda: declare("q", weights=["acme"]), "a mapping of tenants"),  # type: ignore[arg-type]  # nonsense
        (lambda: declare("q", weights={"a": 2}, fair="off"), 'weights go with fair = "round_robin" only'),
        (lambda: declare("q", fair_by="time", fair="proportional"), "fair_by = 'time' goes with"),
        (lambda: declare("q", max_length=0), "max_length = 0"),
        (lambda: declare("q", shards=0), "shards = 0"),
        (lambda: declare("q", shards=5000), "shards = 5000"),
        (lambda: declare("q", foreign="yes"), "foreign = 'yes': True or False"),  # type: ignore[arg-type]  # nonsense
    ],
)
def test_nonsense_is_refused_where_it_is_declared(declaration: Any, problem: str):
    with pytest.raises(ConfigError, match=problem):
        declaration()


@given(st.dictionaries(st.integers(LOWEST_PRIORITY, HIGHEST_PRIORITY), st.integers(1, 100), min_size=1))
def test_every_priority_is_in_exactly_one_band(shares: dict[int, int]):
    found = bounds(weighted(shares).shares)  # type: ignore[arg-type]  # a dict of ints is one of str | int
    assert found[0][1] == HIGHEST_PRIORITY
    assert found[-1][0] == LOWEST_PRIORITY
    for (lowest, _), (_, highest) in pairwise(found):
        assert lowest == highest + 1


# ── shares ───────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=100))
def test_shares_hold_over_claims_of_any_size(weights: list[int], claims: list[int]):
    shares = Shares(weights)
    given = [0] * len(weights)
    for claim in claims:
        got = shares.split(claim)
        assert sum(got) == claim
        given = [before + now for before, now in zip(given, got, strict=True)]
        total = sum(given)
        for got_so_far, weight in zip(given, weights, strict=True):
            # Never off by more than a job for each of the others.
            assert abs(got_so_far - total * weight / sum(weights)) <= len(weights)


def test_claims_of_one_job_keep_80_20():
    plan = planner(declare("q", priority=weighted({"high": 80, "low": 20})))
    first = Counter(plan.plan(1).bands[0] for _ in range(10_000))
    assert first == {
        Band(1, HIGHEST_PRIORITY, 1, ("q",)): 8000,
        Band(LOWEST_PRIORITY, 0, 1, ("q",)): 2000,
    }


def test_a_large_claim_is_divided():
    plan = planner(declare("q", priority=weighted({"high": 3, "normal": 2, "low": 1})))
    assert plan.plan(60).bands == (
        Band(1, HIGHEST_PRIORITY, 30, ("q",)),
        Band(0, 0, 20, ("q",)),
        Band(LOWEST_PRIORITY, -1, 10, ("q",)),
    )


def test_queues_with_and_without_a_policy_share_a_claim():
    plan = planner(declare("a", priority=weighted({"high": 1, "low": 1})), more=("b", "c"))
    assert plan.plan(30).bands == (
        Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, 20, ("b", "c")),
        Band(1, HIGHEST_PRIORITY, 5, ("a",)),
        Band(LOWEST_PRIORITY, 0, 5, ("a",)),
    )


def test_strict_is_no_bands_at_all():
    order = planner(declare("a"), more=("b",)).plan(30)
    assert order.bands == ()
    assert order.weights == {}


# ── ageing ───────────────────────────────────────────────────────────────────


def order_of(levels: Iterable[int], bands: tuple[Band, ...]) -> list[int]:
    """The levels in the order in which a claim comes to them; those that no band covers are left out."""
    first = {
        level: next((place for place, band in enumerate(bands) if band.lowest <= level <= band.highest), None)
        for level in levels
    }
    return sorted((level for level, place in first.items() if place is not None), key=lambda level: first[level] or 0)


def test_ageing_orders_levels_by_priority_and_age():
    plan = planner(declare("q", priority=ageing("1m")))
    assert plan.watched == ("q",)
    plan.saw([view(9), view(0, waited=8 * MINUTE), view(-5, waited=20 * MINUTE), view(-5, waited=1 * MINUTE)], NOW)
    assert order_of([0, 9, -5], plan.plan(10).bands) == [-5, 9, 0]


def test_a_level_that_nobody_has_seen_yet_comes_by_its_priority():
    plan = planner(declare("q", priority=ageing("1m")))
    plan.saw([view(0, waited=150 * timedelta(seconds=1))], NOW)  # counts as 2.5
    assert plan.plan(10).bands == (Band(3, HIGHEST_PRIORITY, 10, ("q",)), Band(0, 0, 10, ("q",)))


def test_before_the_first_look_priorities_are_strict():
    assert planner(declare("q", priority=ageing("1m"))).plan(10).bands == ()


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 5000)), min_size=1, max_size=200),
    st.integers(1, 600),
    st.integers(1, 500),
)
def test_whoever_is_oldest_enough_comes_first(waiting: list[tuple[int, int]], every: int, limit: int):
    plan = planner(declare("q", priority=ageing(timedelta(seconds=every))))
    plan.saw([view(priority, waited=timedelta(seconds=age)) for priority, age in waiting], NOW)
    bands = plan.plan(limit).bands
    assert len(bands) <= MAX_BANDS
    assert all(band.share == limit for band in bands)
    ranks: dict[int, float] = {}
    for priority, age in waiting:
        ranks[priority] = max(
            ranks.get(priority, -9999.0), priority + timedelta(seconds=age) / timedelta(seconds=every)
        )
    order = [ranks[level] for level in order_of(ranks, bands)]
    assert order == sorted(order, reverse=True)
    assert order[0] == max(ranks.values())


# ── tenants ──────────────────────────────────────────────────────────────────


def test_weights_are_passed_on():
    plan = planner(declare("q", weights={"acme": 3, "small": 1}), declare("r"))
    assert plan.plan(10).weights == {"q": {"acme": 3}}


def test_proportional_follows_the_backlog():
    plan = planner(declare("q", fair="proportional"))
    assert plan.watched == ("q",)
    plan.saw([view(0, tenant="a", jobs=30), view(5, tenant="a", jobs=10), view(0, tenant="b", jobs=10)], NOW)
    assert plan.plan(10).weights == {"q": {"a": 4}}


def test_turns_of_equal_run_time():
    plan = planner(declare("q", fair_by="time", weights={"vip": 2}))
    assert plan.timed == {"q"}
    for _ in range(100):
        plan.ran("q", "slow", 0.4)
        plan.ran("q", "quick", 0.1)
        plan.ran("q", "vip", 0.4)
    assert plan.plan(10).weights == {"q": {"quick": 4, "vip": 2}}


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.floats(1e-3, 1e3), max_size=20))
def test_jobs_in_a_turn_are_whole_bounded_and_right_on_average(speeds: Mapping[str, float]):
    draws = [(each + 0.5) / 100 for each in range(100)]
    sums: Counter[str] = Counter()
    for draw in draws:
        weights = in_turns(speeds, lambda draw=draw: draw)
        assert all(1 < weight <= MAX_WEIGHT for weight in weights.values())
        for name in speeds:
            sums[name] += weights.get(name, 1)
    for name, speed in speeds.items():
        wanted = speed / min(speeds.values())
        if wanted < MAX_WEIGHT - 1:
            assert abs(sums[name] / 100 - wanted) < 0.011


def test_run_times_of_many_tenants_take_no_more_room():
    times = RunTimes(most=10)
    for number in range(1000):
        times.note(f"t{number}", 1.0)
    times.note("t999", 4.0)
    assert len(times.weights({f"t{number}": 2 for number in range(1000)})) <= 10


# ── reserved slots ───────────────────────────────────────────────────────────


def test_reserved_slots():
    assert parse_reserve("high=2") == Reserve(1, HIGHEST_PRIORITY, 2)
    assert parse_reserve("normal=2") == Reserve(0, 0, 2)
    assert parse_reserve(" low = 1") == Reserve(LOWEST_PRIORITY, -1, 1)
    assert parse_reserve("5=3") == Reserve(5, HIGHEST_PRIORITY, 3)
    assert parse_reserve("-5=3") == Reserve(-5, HIGHEST_PRIORITY, 3)


@pytest.mark.parametrize("text", ["high", "high=", "high=0", "high=-1", "high=two", "urgent=2", "=2", "5000=1", 7])
def test_nonsense_to_reserve(text: Any):
    with pytest.raises(ConfigError, match="reserve"):
        parse_reserve(text)


@given(
    st.lists(st.integers(-3, 3), max_size=12),
    st.lists(st.sampled_from(["high=2", "low=1", "normal=1", "2=3"]), unique=True),
)
def test_ordinary_jobs_never_take_the_last_reserved_slots(priorities: list[int], names: list[str]):
    size, reserves = 12, [parse_reserve(each) for each in names]
    left = room(size - len(priorities), size, reserves, priorities)
    reserved = sum(each.slots for each in reserves)
    assert left.ordinary <= size - reserved
    assert left.ordinary <= size - len(priorities)
    # A job of any priority that took all that is ordinary still leaves what is reserved and free.
    if left.ordinary > 0:
        after = room(size - len(priorities) - left.ordinary, size, reserves, [*priorities, *[-3] * left.ordinary])
        for band in left.reserved:
            if band.highest >= 0:
                assert any(each.lowest == band.lowest and each.share > 0 for each in after.reserved)
    if not priorities:
        assert left.ordinary == size - reserved
        assert sum(band.share for band in left.reserved) == reserved
