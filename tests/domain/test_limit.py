"""Limits: what is refused where it is declared, the keys of jobs, and, as properties, what becomes of a limit in use."""

from __future__ import annotations

import contextvars
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Headrace, Limit
from headrace.errors import BadArguments, ConfigError, Unsupported
from headrace.model.lane import split_limit
from headrace.policy.recovery import (
    GROWS_EVERY,
    LEAST_FACTOR,
    LONGEST_COOL_DOWN,
    QUIET,
    RESTS_EVERY,
    WELL,
    LimitHealth,
    LimitObservation,
    State,
    What,
    after,
    figures_of,
    moment,
    pack,
    rested,
    rule_of,
    unpack,
)
from headrace.task import context
from headrace.task.context import NoCurrentJob
from headrace.task.limit import LimitDeclaration, LimitFigures, check_limits, describe, keys_of
from headrace.task.task import JobCall

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


# ── declared ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, 'limits nothing: give concurrency=4, rate="90/s" or breaker=5'),
        ({"concurrency": 0}, "concurrency = 0: a whole number from 1"),
        ({"concurrency": -3}, "concurrency = -3"),
        ({"concurrency": True}, "concurrency = True"),
        ({"concurrency": 1.5}, "concurrency = 1.5"),
        ({"rate": "fast"}, "limit 'api': rate = 'fast' is not a rate: write"),
        ({"rate": "0/s"}, "is not a rate"),
        ({"rate": 5}, "is not a rate"),
        ({"burst": 3}, 'burst = 3 without rate: give rate="90/s"'),
        ({"rate": "5/s", "burst": 0}, "burst = 0"),
        ({"rate": "5/s", "burst": 3, "cost": 4}, "cost = 4 is over burst = 3.*set burst=4"),
        ({"concurrency": 3, "cost": 4}, "cost = 4 is over concurrency = 3"),
        ({"concurrency": 3, "cost": 0}, "cost = 0"),
        ({"concurrency": 3, "cost": True}, "cost = True"),
        ({"concurrency": 3, "key": "shop"}, "key = 'shop': a function of the task's arguments"),
        ({"breaker": 0}, "breaker = 0"),
        ({"breaker": 3, "cool_down": "0s"}, "cool_down = '0s': must be more than 0"),
        ({"breaker": 3, "cool_down": 5}, "cool_down = 5 is not a duration"),
    ],
)
def test_nonsense_is_refused_where_it_is_declared(options: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        Limit("api", **options)


@pytest.mark.parametrize("name", ["", "A", "a:b", "a@2", "-a", "a b", "x" * 64])
def test_names(name: str):
    with pytest.raises(ConfigError, match="is not a valid limit name"):
        Limit(name, concurrency=1)


def test_a_task_names_each_limit_once_and_as_a_list():
    one = Limit("one", concurrency=1)
    assert [each.name for each in check_limits([Limit("two", concurrency=1), one])] == ["one", "two"]
    with pytest.raises(ConfigError, match="limits=\\[stripe\\]"):
        check_limits(one)  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(ConfigError, match="is not a Limit"):
        check_limits(["one"])  # type: ignore[list-item]  # what a user may write
    with pytest.raises(ConfigError, match="'one' is there twice"):
        check_limits([one, Limit("one", rate="5/s")])


def test_tasks_share_a_limit_or_disagree_loudly():
    app = Headrace("memory://")
    shared = Limit("api", rate="5/s")

    @app.task(limits=[shared])
    async def one() -> None: ...

    @app.task(limits=[Limit("api", rate="5/s", cost=2)])
    async def two() -> None: ...

    assert app.limits.declared["api"].cost == 2  # what one job may need
    with pytest.raises(
        ConfigError, match=r"task .*three: limit 'api' is declared twice with other figures \(5/s; 6/s\)"
    ):

        @app.task(limits=[Limit("api", rate="6/s")])
        async def three() -> None: ...

    assert set(app.tasks) == {one.name, two.name}


# ── keys ─────────────────────────────────────────────────────────────────────


def test_keys():
    per_shop = Limit("shop", concurrency=4, key=lambda order, shop: shop)
    heavy = Limit("api", rate="10/s", cost=3)
    by_size = Limit("disk", concurrency=10, cost=lambda order, shop: order, key=lambda order, shop: 7)
    assert per_shop.keys_for(1, "acme") == ("shop:acme",)
    assert heavy.keys_for(1, "acme") == ("api@3",)
    assert by_size.keys_for(2, shop="x") == ("disk@2:7",)
    assert keys_of((per_shop, heavy, by_size), (1, "acme"), {}) == ("api@3", "disk:7", "shop:acme")
    assert Limit("shop", concurrency=1, key=lambda: None).keys_for() == ()


@given(
    own=st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=200),
    cost=st.integers(1, 1000),
)
def test_split_limit_is_the_inverse(own: str, cost: int):
    limit = Limit("shop.x-1", concurrency=1000, key=lambda: own, cost=lambda: cost)
    if not own.isprintable():
        return
    assert split_limit(*limit.keys_for()) == ("shop.x-1", f"shop.x-1:{own}", cost)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": lambda _: ""}, "its key is ''"),
        ({"key": lambda _: True}, "its key is True"),
        ({"key": lambda _: 1.5}, r"its key is 1\.5"),
        ({"key": lambda _: "a\nb"}, "printable characters"),
        ({"key": lambda _: "x" * 300}, "printable characters"),
        ({"cost": lambda _: 0}, "cost = 0"),
        ({"cost": lambda _: 5}, "cost = 5 is over concurrency = 4"),
    ],
)
def test_a_bad_key_or_cost_is_the_callers_error(options: dict[str, Any], problem: str):
    app = Headrace("memory://")

    @app.task(limits=[Limit("api", concurrency=4, **options)])
    async def task(number: int) -> None: ...

    with pytest.raises(BadArguments, match=problem):
        task.job(1)


def test_functions_get_the_tasks_defaults():
    app = Headrace("memory://")
    per_shop = Limit("shop", concurrency=9, key=lambda order, shop, size: shop, cost=lambda order, shop, size: size)
    others = Limit("api", concurrency=9, key=lambda a, b, *, size: f"{a} {b} {size}")

    @app.task(limits=[per_shop])
    async def plain(order: int, shop: str = "acme", size: int = 2) -> None: ...

    @app.task(limits=[others])
    async def mixed(order: int, /, shop: str = "acme", *, size: int = 2) -> None: ...

    @app.task(limits=[Limit("only", concurrency=9, key=lambda *, shop, **_: shop)])
    async def by_name(order: int, shop: str = "acme") -> None: ...

    @app.task(limits=[Limit("any", concurrency=9, key=lambda *args, **kwargs: len(args) + len(kwargs))])
    async def anything(*args: int, **kwargs: int) -> None: ...

    def keys(call: JobCall[None]) -> tuple[str, ...]:
        return call.job.lane.limits

    assert keys(plain.job(1)) == keys(plain.job(1, "acme", 2)) == keys(plain.job(size=2, order=1)) == ("shop@2:acme",)
    assert keys(plain.job(1, "b", size=3)) == ("shop@3:b",)
    assert keys(by_name.job(1)) == ("only:acme",)
    assert keys(by_name.job(order=1, shop="b")) == ("only:b",)
    assert keys(anything.job(1, 2, three=3)) == ("any:3",)
    assert keys(mixed.job(1)) == ("api:1 acme 2",)
    assert keys(mixed.job(1, shop="b", size=3)) == ("api:1 b 3",)


@pytest.mark.parametrize("options", [{"key": lambda: "x"}, {"cost": lambda a, b: 1}, {"key": lambda other, *, x: "x"}])
def test_a_function_of_another_shape_is_refused_where_it_is_declared(options: dict[str, Any]):
    app = Headrace("memory://")
    with pytest.raises(
        ConfigError, match=r"task .*call: limit 'api': its \w+ function must take what the task takes: number"
    ):

        @app.task(limits=[Limit("api", concurrency=4, **options)])
        async def call(number: int) -> None: ...

    assert app.tasks == {}


def test_a_cost_that_no_bucket_holds():
    limit = Limit("api", rate="5/s", cost=lambda n: n)
    assert limit.keys_for(5) == ("api@5",)
    with pytest.raises(ConfigError, match=r"over a second's worth \(5\).*set burst=6"):
        limit.keys_for(6)


def test_tripped_needs_a_job():
    with pytest.raises(NoCurrentJob):
        Limit("api", rate="5/s").tripped("30s")


def test_a_process_cannot_reach_its_worker():
    alone: Any = object()
    own = contextvars.copy_context()
    own.run(context.enter, alone)
    with pytest.raises(Unsupported, match='raise RetryAfter\\("30s"\\) instead'):
        own.run(Limit("api", rate="5/s").tripped, "30s")


# ── what it allows ───────────────────────────────────────────────────────────

API = Limit("api", rate="40/s", burst=10, concurrency=8, breaker=3, cool_down="2s").declared


def test_the_figures_are_what_it_allows():
    allowed = rule_of(API, None, WELL)
    assert (allowed.rate, allowed.burst, allowed.concurrency, allowed.closed_until) == (40.0, 10.0, 8, None)
    assert rule_of(None, None, WELL).concurrency is None


def test_a_burst_is_a_seconds_worth_and_one_job_at_least():
    assert rule_of(Limit("a", rate="90/s").declared, None, WELL).burst == 90
    assert rule_of(Limit("a", rate="6/m").declared, None, WELL).burst == 1
    assert rule_of(Limit("a", rate="6/m", cost=4).declared, None, WELL).burst == 4


def test_an_operators_figures_stand_before_the_codes():
    override = LimitFigures(rate=2.0)
    assert figures_of(API, override) == LimitFigures(rate=2.0, burst=10, concurrency=8)
    assert rule_of(API, override, WELL).rate == 2.0
    assert rule_of(None, override, WELL).rate == 2.0


def test_what_is_kept():
    state = State(declared=API, override=LimitFigures(concurrency=2), health=LimitHealth(factor=0.5, closed_until=NOW))
    assert unpack(pack(state)) == state
    assert unpack(b"") == unpack(b"\xff\x00") == State()


def test_for_people():
    assert describe(LimitFigures(rate=1.5, burst=30, concurrency=4)) == "1.5/s burst 30, 4 at once"
    assert describe(LimitFigures(rate=0.1)) == "6/m"
    assert moment(SECOND, NOW) == NOW + SECOND
    assert moment(NOW, NOW + SECOND) == NOW


# ── what becomes of it ───────────────────────────────────────────────────────


def seen(what: What, at: datetime, until: datetime | None = None) -> LimitObservation:
    return LimitObservation(what, at, until)


def test_a_refusal_closes_then_one_probe_then_half_then_more():
    until = NOW + 30 * SECOND
    health = after(WELL, seen(What.REFUSED, NOW, until), API, NOW)
    allowed = rule_of(API, None, health)
    # From then on one job at a time, which stores see by the time that has passed.
    assert (allowed.closed_until, allowed.concurrency, allowed.rate, allowed.burst) == (until, 8, 20.0, 10.0)
    # Those that were under way say nothing new.
    assert after(health, seen(What.REFUSED, NOW - SECOND, until), API, NOW) == health
    assert after(health, seen(What.SUCCEEDED, NOW), API, NOW + SECOND) == health
    # The probe.
    opened = after(health, seen(What.SUCCEEDED, until), API, until + SECOND)
    allowed = rule_of(API, None, opened)
    assert (allowed.closed_until, allowed.concurrency, allowed.rate, allowed.burst) == (None, 4, 20.0, 5.0)
    # Sustained success.
    now, steps = until + SECOND, 0
    while opened != WELL:
        now += GROWS_EVERY
        steps += 1
        opened = after(opened, seen(What.SUCCEEDED, now), API, now)
        assert after(opened, seen(What.SUCCEEDED, now), API, now) == opened  # not faster than time goes by
    assert steps == 10


def test_one_burst_of_refusals_closes_a_limit_once():
    until = NOW + 30 * SECOND
    health = after(WELL, seen(What.REFUSED, NOW - SECOND, until), API, NOW)
    # Claimed after the limit was found closed and before claims knew of it.
    late = seen(What.REFUSED, NOW + SECOND / 100, until)
    assert after(health, late, API, NOW + SECOND) == health
    assert after(health, seen(What.FAILED, NOW + SECOND / 100), API, NOW + SECOND) == health
    # Also when a probe has opened it meanwhile.
    opened = after(health, seen(What.SUCCEEDED, until), API, until + SECOND)
    assert after(opened, late, API, until + 2 * SECOND) == opened
    # One that was let through by a limit half open is news.
    assert after(health, seen(What.REFUSED, until, until + SECOND), API, until).closings == 2


def test_a_cost_that_is_a_function_changes_nothing_of_how_a_limit_is_cut():
    by_size = Limit("api", rate="10/s", burst=10, concurrency=10, cost=lambda n: n)
    allowed = rule_of(by_size.declared, None, LimitHealth(factor=0.25))
    assert (allowed.rate, allowed.burst, allowed.concurrency) == (2.5, 2.0, 2)
    # Half open: whichever job comes first must fit.
    allowed = rule_of(by_size.declared, None, LimitHealth(factor=0.25, closed_until=NOW))
    assert (allowed.rate, allowed.burst, allowed.concurrency) == (2.5, 10.0, 10)


def test_time_heals_too():
    until = NOW + SECOND
    closed = after(WELL, seen(What.REFUSED, NOW, until), API, NOW)
    assert rested(closed, until + QUIET - SECOND) == closed  # no job has tried it
    assert rested(closed, until + QUIET) == WELL
    opened = after(closed, seen(What.SUCCEEDED, until), API, until)
    assert rested(opened, until + RESTS_EVERY / 2) == opened
    assert rested(opened, until + RESTS_EVERY).factor == pytest.approx(0.55)
    assert rested(opened, until + 10 * RESTS_EVERY) == WELL
    # One success a day, say.
    assert after(opened, seen(What.SUCCEEDED, until + QUIET), API, until + QUIET) == WELL
    failed = after(WELL, seen(What.FAILED, NOW), API, NOW)
    assert rested(failed, NOW + QUIET - SECOND) == failed
    assert rested(failed, NOW + QUIET) == WELL


def test_a_longer_refusal_of_one_under_way_counts():
    health = after(WELL, seen(What.REFUSED, NOW, NOW + SECOND), API, NOW)
    longer = after(health, seen(What.REFUSED, NOW - SECOND, NOW + 9 * SECOND), API, NOW)
    assert longer.closed_until == NOW + 9 * SECOND
    assert longer.factor == health.factor


def test_a_breaker():
    health, now = WELL, NOW
    for _ in range(2):
        health = after(health, seen(What.FAILED, now), API, now)
    assert rule_of(API, None, health).closed_until is None
    assert after(health, seen(What.SUCCEEDED, now), API, now) == WELL  # in a row, or not at all
    health = after(health, seen(What.FAILED, now), API, now)
    assert health.closed_until == now + 2 * SECOND
    # The probe fails: longer; and no longer than the longest.
    for closings in range(1, 12):
        now = health.closed_until
        assert now is not None
        health = after(health, seen(What.FAILED, now), API, now)
        assert health.closed_until == now + min(2 * SECOND * 2**closings, LONGEST_COOL_DOWN)
    assert after(WELL, seen(What.FAILED, NOW), Limit("x", rate="5/s").declared, NOW) == WELL


times = st.integers(0, 600)
events = st.lists(
    st.tuples(st.sampled_from(list(What)), st.integers(0, 5), st.integers(0, 30), st.integers(1, 40)), max_size=80
)
declared = st.builds(
    lambda rate, burst, concurrency, cost, breaker: LimitDeclaration(
        figures=LimitFigures(rate=rate, burst=max(burst, cost), concurrency=max(concurrency, cost)),
        cost=cost,
        breaker=breaker,
    ),
    st.floats(0.001, 1e6),
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.none() | st.integers(1, 5),
)


@given(declared, events)
def test_it_never_allows_more_than_declared_nor_too_little_for_a_job(
    limit: LimitDeclaration, story: list[tuple[What, int, int, int]]
):
    health, now = WELL, NOW
    for what, pause, age, until in story:
        now += timedelta(seconds=pause)
        health = after(
            health, LimitObservation(what, now - timedelta(seconds=age), now + timedelta(seconds=until)), limit, now
        )
        assert LEAST_FACTOR <= health.factor <= 1
        allowed, full = rule_of(limit, None, health), rule_of(limit, None, WELL)
        assert allowed.rate is not None
        assert full.rate is not None
        assert full.concurrency is not None
        assert allowed.concurrency is not None
        assert 0 < allowed.rate <= full.rate
        assert limit.cost <= allowed.burst <= full.burst
        assert limit.cost <= allowed.concurrency <= full.concurrency
        assert unpack(pack(State(health=health))).health == health


@given(declared, events)
def test_it_always_recovers(limit: LimitDeclaration, story: list[tuple[What, int, int, int]]):
    health, now = WELL, NOW
    for what, pause, age, until in story:
        now += timedelta(seconds=pause)
        health = after(
            health, LimitObservation(what, now - timedelta(seconds=age), now + timedelta(seconds=until)), limit, now
        )
    # From here on every job succeeds, as soon as one may start.
    now = max(now, health.closed_until or now)
    for _ in range(30):
        now += GROWS_EVERY
        health = after(health, LimitObservation(What.SUCCEEDED, now), limit, now)
    assert health == WELL


@given(declared, st.lists(st.integers(0, 20), min_size=1, max_size=50))
def test_many_refusals_at_once_count_once(limit: LimitDeclaration, ages: list[int]):
    first = after(WELL, LimitObservation(What.REFUSED, NOW, NOW + SECOND), limit, NOW)
    health = first
    for age in ages:
        health = after(
            health,
            LimitObservation(What.REFUSED, NOW - timedelta(seconds=age + 1), NOW + SECOND),
            limit,
            NOW + SECOND / 2,
        )
    assert health == first


def test_figures_are_plain_data():
    assert msgspec.to_builtins(LimitFigures(rate=5.0)) == {"rate": 5.0}
