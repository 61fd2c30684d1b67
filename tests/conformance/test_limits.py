"""Limits: how many units of a key may be held at once or go in a time; blocked lanes wait at no cost."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest

from conformance.kit import (
    CANCELLED,
    JANITOR,
    RELEASE,
    TTL,
    claim,
    counts,
    dump,
    ids,
    look,
    new,
    put,
    put_jobs,
    rule,
    settle_all,
    take,
    tenants,
)
from headrace.errors import ConfigError
from headrace.model.job import JobState
from headrace.model.lease import Lease, new_token
from headrace.model.outcome import DONE, Again
from headrace.model.records import Filter, LimitRule
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

MS = timedelta(milliseconds=1)
S = timedelta(seconds=1)


# ── rules ────────────────────────────────────────────────────────────────────


async def test_rules_are_written_if_nobody_else_did(store: Store, clock: FakeClock):
    assert await store.limits() == {}
    closed = clock.now() + S
    rule = LimitRule(concurrency=4, rate=1.5, burst=3, closed_until=closed, state=b"\x00\xff")
    first = await store.limit("api", rule, None)
    assert first
    assert await store.limit("api", LimitRule(rate=2), None) is None
    [(name, found)] = (await store.limits()).items()
    assert (name, found.version) == ("api", first)
    assert (found.concurrency, found.rate, found.burst, found.closed_until, found.state) == (
        4,
        1.5,
        3,
        closed,
        b"\x00\xff",
    )
    second = await store.limit("api", LimitRule(rate=2), first)
    assert second not in {None, first}
    assert await store.limit("api", None, first) is None
    assert await store.limit("api", None, second) == 0
    assert await store.limits() == {}
    assert await store.limit("api", LimitRule(rate=2), None) not in {None, first, second}


async def test_a_key_without_a_rule_limits_nothing(store: Store):
    await put(store, 5, limits=("api", "shop:1"))
    assert len((await take(store)).jobs) == 5


# ── concurrency ──────────────────────────────────────────────────────────────


async def test_no_more_at_once_than_the_rule_says(store: Store):
    await rule(store, "api", concurrency=3)
    await put(store, 10, limits=("api",))
    first = await take(store, 2)
    second = await take(store, 100)
    assert (len(first.jobs), len(second.jobs)) == (2, 1)
    assert await claim(store) is None
    assert await counts(store) == {"ready": 7, "running": 3}
    await store.settle(first.token, [(0, DONE)])
    third = await take(store)
    assert len(third.jobs) == 1
    await settle_all(store, second, RELEASE)
    assert ids(await take(store)) == ids(second)


async def test_a_rule_holds_over_lanes_tasks_queues_and_priorities(store: Store):
    await rule(store, "api", concurrency=4)
    for queue, tenant, priority in [("a", "x", 0), ("a", "y", 0), ("b", "x", 3), ("b", "", -1)]:
        await put(store, 3, queue=queue, tenant=tenant, priority=priority, limits=("api",))
    leases = [await claim(store, 100, queue) for queue in ("a", "b", "a", "b")]
    assert sum(len(ids(lease)) for lease in leases) == 4


@pytest.mark.parametrize(
    "figures", [{"concurrency": 4}, {"rate": 1.0, "burst": 4.0}, {"concurrency": 9, "rate": 1.0, "burst": 4.0}]
)
async def test_units_that_one_lane_does_not_need_are_there_for_the_next(store: Store, figures: dict[str, float]):
    await rule(store, "shop", **figures)
    await put_jobs(store, new(limits=("shop:1",)), new(), new())
    await put(store, 1, tenant="x", limits=("shop:1",))
    await put(store, 1, tenant="y", limits=("shop:1",))
    await put(store, 9, tenant="z", limits=("shop:1",))
    lease = await take(store, 100)
    assert Counter(tenants(lease)) == {"": 3, "x": 1, "y": 1, "z": 1}
    assert await claim(store) is None


async def test_each_key_has_its_own_units(store: Store):
    await rule(store, "shop", concurrency=2)
    for shop in ("1", "2", "3"):
        await put(store, 5, limits=(f"shop:{shop}",))
    assert len((await take(store)).jobs) == 6
    assert await claim(store) is None


async def test_the_rule_of_a_whole_key_stands_before_that_of_its_name(store: Store):
    await rule(store, "shop", concurrency=2)
    await rule(store, "shop:1", concurrency=4)
    await put(store, 9, limits=("shop:1",))
    await put(store, 9, limits=("shop:2",))
    assert len((await take(store)).jobs) == 6
    await rule(store, "shop:1")
    assert await claim(store) is None


async def test_several_limits_on_one_lane(store: Store):
    await rule(store, "api", concurrency=5)
    await rule(store, "shop", concurrency=2)
    await put(store, 9, limits=("api", "shop:1"))
    await put(store, 9, limits=("api", "shop:2"))
    await put(store, 9, limits=("api", "shop:3"))
    lease = await take(store)
    assert len(lease.jobs) == 5
    assert await claim(store) is None


async def test_a_job_may_need_several_units(store: Store):
    await rule(store, "api", concurrency=5)
    await put(store, 9, limits=("api@2",))
    lease = await take(store)
    assert len(lease.jobs) == 2
    await put(store, 9, tenant="light", limits=("api",))
    assert len((await take(store)).jobs) == 1
    await store.settle(lease.token, [(0, DONE)])
    assert len((await take(store)).jobs) in {1, 2}
    assert await claim(store) is None


@pytest.mark.parametrize(
    "units",
    ["abc", "", "0", "-1", "007", "1e3", "0x10", " 3", "2@3", "\u0663", "1.5", "1000001", "2147483648", "9" * 100],
)
async def test_units_that_are_no_number_count_as_one(store: Store, units: str):
    """A store may refuse such a key. One that takes it must be able to claim it: a stored text stops no claim."""
    await rule(store, "api", concurrency=3)
    with suppress(ConfigError):
        await put(store, 2, limits=(f"api@{units}",))
        await put(store, 2, limits=(f"api@{units}:acme",))
    await put(store, 3, tenant="plain", limits=("api",))
    await put(store, 2, queue="other")
    taken = Counter[str]()
    while (lease := await claim(store, 100, "default", "other")) is not None:
        for job in lease.jobs:
            found = (await store.get([job.id]))[0]
            assert found is not None
            taken[",".join(found.limits)] += 1
        waiting = [job for job in (await store.find(Filter())).jobs if job.state is JobState.READY]
        for job in waiting[:3]:
            await store.ahead(job.id)
        await store.settle(lease.token, [(position, DONE) for position in range(len(lease.jobs))])
    assert taken["api"] == 3
    assert taken[""] == 2
    assert set(taken.values()) == {2, 3}


async def test_more_units_than_can_be_counted_stop_no_claim(store: Store):
    with suppress(ConfigError):
        await put(store, 900, limits=tuple(f"api@{1_000_000 - number}" for number in range(20)))
    await put(store, 1)
    taken = 0
    while (lease := await claim(store, 1000)) is not None:
        taken += len(lease.jobs)
        await store.settle(lease.token, [(position, DONE) for position in range(len(lease.jobs))])
    assert taken in {1, 901}


async def test_others_pass_who_is_blocked(store: Store):
    await rule(store, "api", concurrency=1)
    await put(store, 3, priority=9, limits=("api",))
    await put(store, 3, priority=9, tenant="free")
    await put(store, 3)
    assert len((await take(store)).jobs) == 1 + 3 + 3
    assert await claim(store) is None


async def test_units_that_come_free_are_for_the_highest_priority(store: Store):
    await rule(store, "api", concurrency=1)
    await put(store, 1, limits=("api",))
    lease: Lease | None = await take(store)
    for tenant, priority in (("low", -3), ("middle", 0), ("high", 9)):
        # Blocked in this order.
        await put(store, 2, tenant=tenant, priority=priority, limits=("api",))
        assert await claim(store) is None
    begun: list[str] = []
    while lease is not None:
        await settle_all(store, lease)
        lease = await claim(store)
        begun += tenants(lease)
    assert begun == ["high", "high", "middle", "middle", "low", "low"]


async def test_many_blocked_lanes_hide_nothing(store: Store):
    await rule(store, "shop", concurrency=0)
    await put_jobs(store, *[new(tenant=f"t{n}", limits=(f"shop:{n}",)) for n in range(300)])
    [free] = await put(store, tenant="t150")
    [last] = await put(store, tenant="zz")
    found: list[object] = []
    while lease := await claim(store, 1):
        found += ids(lease)
    assert set(found) == {free, last}


async def test_a_crashed_workers_units_come_back_with_its_jobs(store: Store, clock: FakeClock):
    await rule(store, "api", concurrency=2)
    await put(store, 5, limits=("api",))
    dead = await take(store)
    clock.advance(TTL)
    assert await claim(store) is None
    [orphan] = await store.reap(JANITOR, TTL)
    # Taken over is not settled: it may still be running somewhere.
    assert await claim(store) is None
    assert await store.settle(dead.token, [(0, DONE)]) == {0}
    assert await claim(store) is None
    await store.settle(orphan.token, [(position, RELEASE) for position, _ in orphan.jobs])
    assert len((await take(store)).jobs) == 2


async def test_units_come_back_when_a_neighbour_of_the_job_is_deleted(store: Store, clock: FakeClock):
    await rule(store, "shop", concurrency=2)
    await put(store, 3, limits=("shop:acme",))
    lease = await take(store, 3)
    first, second = ids(lease)
    await store.settle(lease.token, [(0, DONE)])
    assert await store.delete([first]) == {first}
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert not await store.settle(orphan.token, [(position, RELEASE) for position, _ in orphan.jobs])
    assert await counts(store) == {"ready": 2}
    assert ids(await take(store, 3))[0] == second
    assert await claim(store, 1) is None


async def test_a_detached_job_keeps_its_unit(store: Store):
    await rule(store, "api", concurrency=2)
    await put(store, 5, limits=("api",))
    lease, fresh = await take(store), new_token()
    assert await store.detach(lease.token, 0, fresh)
    assert await claim(store) is None
    await store.settle(lease.token, [(1, DONE)])
    assert len((await take(store)).jobs) == 1
    await store.settle(fresh, [(0, DONE)])
    assert len((await take(store)).jobs) == 1
    assert await claim(store) is None


@pytest.mark.parametrize("end", [DONE, CANCELLED, RELEASE, Again(1, 0, due=S), Again(0, 1, suspect=True)])
async def test_every_end_gives_units_back_once(store: Store, end: Again):
    await rule(store, "api", concurrency=3)
    await put(store, 9, limits=("api",))
    lease = await take(store)
    await settle_all(store, lease, end)
    # Said again after a lost answer.
    await store.settle(lease.token, [(0, end), (1, end)])
    running = 0
    while more := await claim(store):
        running += len(more.jobs)
    assert running == 3


async def test_a_cancelled_running_job_holds_on_until_it_is_settled(store: Store):
    await rule(store, "api", concurrency=1)
    first, second = await put(store, 2, limits=("api",))
    lease = await take(store)
    await store.cancel([first])
    assert await claim(store) is None
    await settle_all(store, lease, RELEASE)
    assert ids(await take(store)) == [second]


async def test_rules_change_at_run_time(store: Store):
    await rule(store, "api", concurrency=4)
    await put(store, 20, limits=("api",))
    lease = await take(store)
    await rule(store, "api", concurrency=2)
    await store.settle(lease.token, [(0, DONE), (1, DONE)])
    assert await claim(store) is None
    await store.settle(lease.token, [(2, DONE)])
    assert len((await take(store)).jobs) == 1
    await rule(store, "api", concurrency=10)
    assert len((await take(store)).jobs) == 8
    await rule(store, "api")
    assert len((await take(store)).jobs) == 7


async def test_a_rule_made_later_counts_what_runs_already(store: Store):
    await put(store, 5, limits=("api",))
    await take(store, 3)
    await rule(store, "api", concurrency=4)
    assert len((await take(store)).jobs) == 1


async def test_jobs_that_come_back_respect_limits(store: Store, clock: FakeClock):
    await rule(store, "api", concurrency=2)
    await put(store, 6, limits=("api",), due=S)
    clock.advance(S)
    await store.promote()
    lease = await take(store)
    assert len(lease.jobs) == 2
    await settle_all(store, lease, RELEASE)
    assert len((await take(store)).jobs) == 2
    assert await claim(store) is None


async def test_suspects_respect_limits(store: Store):
    await rule(store, "api", concurrency=1)
    await put(store, 2, limits=("api",))
    lease = await take(store)
    await settle_all(store, lease, Again(0, 1, suspect=True))
    alone = await take(store)
    assert alone.suspect
    assert await claim(store) is None


async def test_a_blocked_claim_changes_nothing(store: Store):
    await rule(store, "api", concurrency=1)
    await put(store, 5, limits=("api",))
    await take(store)
    before = await dump(store)
    assert await claim(store) is None
    assert await dump(store) == before


async def test_order_in_a_blocked_lane_is_kept(store: Store):
    await rule(store, "api", concurrency=1)
    wanted = [*await put(store, 3, limits=("api",)), *await put(store, 2, limits=("api",))]
    for id in wanted:
        lease = await take(store)
        assert ids(lease) == [id]
        assert await claim(store) is None
        await settle_all(store, lease)


# ── rates ────────────────────────────────────────────────────────────────────


async def test_a_rate_lets_a_burst_go_and_then_refills(store: Store, clock: FakeClock):
    await rule(store, "api", rate=2, burst=3)
    await put(store, 50, limits=("api",))
    assert len((await take(store)).jobs) == 3
    assert await claim(store) is None
    clock.advance(499 * MS)
    assert await claim(store) is None
    clock.advance(1 * MS)
    assert len((await take(store)).jobs) == 1
    clock.advance(1 * S)
    assert len((await take(store)).jobs) == 2
    clock.advance(timedelta(hours=1))
    assert len((await take(store)).jobs) == 3
    assert await claim(store) is None


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_a_rate_holds_over_every_window(store: Store, clock: FakeClock, limit: int):
    await rule(store, "api", rate=10, burst=4)
    await put(store, 200, limits=("api",))
    began: list[float] = []
    for _ in range(60):
        while lease := await claim(store, limit):
            began += [clock.now().timestamp()] * len(lease.jobs)
            await settle_all(store, lease)
        clock.advance(70 * MS)
    for first in range(len(began)):
        for last in range(first, len(began)):
            assert last - first + 1 <= 4 + 10 * (began[last] - began[first]) + 1e-3
    # No other lane is held back.
    assert len(began) >= 4 + 10 * 59 * 0.07 - 1


async def test_what_a_rate_gave_stays_spent(store: Store):
    await rule(store, "api", rate=1, burst=2)
    await put(store, 5, limits=("api",))
    await settle_all(store, await take(store), RELEASE)
    assert await claim(store) is None


async def test_rates_by_key_and_cost(store: Store, clock: FakeClock):
    await rule(store, "shop", rate=1, burst=6)
    await put(store, 9, limits=("shop@3:a",))
    await put(store, 9, limits=("shop:b",))
    assert len((await take(store)).jobs) == 2 + 6
    clock.advance(2 * S)
    assert len((await take(store)).jobs) == 0 + 2
    clock.advance(1 * S)
    assert len((await take(store)).jobs) == 1 + 1


async def test_a_rate_and_a_cap_together(store: Store, clock: FakeClock):
    await rule(store, "api", rate=10, burst=5, concurrency=2)
    await put(store, 9, limits=("api",))
    lease = await take(store)
    assert len(lease.jobs) == 2
    await settle_all(store, lease)
    assert len((await take(store)).jobs) == 2
    clock.advance(S)
    assert await claim(store) is None


async def test_a_smaller_burst_counts_at_once(store: Store, clock: FakeClock):
    await rule(store, "api", rate=1, burst=10)
    await put(store, 30, limits=("api",))
    assert len((await take(store, 2)).jobs) == 2
    await rule(store, "api", rate=1, burst=3)
    assert len((await take(store)).jobs) == 3
    clock.advance(1 * S)
    assert len((await take(store)).jobs) == 1


# ── closed ───────────────────────────────────────────────────────────────────


async def test_a_closed_limit_lets_nothing_through_until_then(store: Store, clock: FakeClock):
    await rule(store, "api", concurrency=1, closed_until=clock.now() + 10 * S)
    await put(store, 3, limits=("api",))
    [other] = await put(store)
    assert ids(await take(store)) == [other]
    clock.advance(10 * S - MS)
    assert await claim(store) is None
    clock.advance(MS)
    assert len((await take(store)).jobs) == 1


@pytest.mark.parametrize("figures", [{}, {"concurrency": 9}, {"rate": 5.0, "burst": 9.0}])
async def test_a_limit_that_was_closed_lets_one_job_at_a_time_through(
    store: Store, clock: FakeClock, figures: dict[str, float]
):
    await rule(store, "api", closed_until=clock.now() + S, **figures)
    await put(store, 3, limits=("api",), priority=5)
    await put(store, 2, limits=("api@3",), tenant="x")
    await put(store, 2, limits=("api@2",), tenant="y")
    assert await claim(store) is None
    clock.advance(S)
    begun: list[str] = []
    [last] = await put(store, limits=("api@2",), priority=-9)
    for _ in range(7):
        lease = await take(store)
        assert len(lease.jobs) == 1
        assert await claim(store) is None
        ahead = await store.ahead(last)
        assert ahead is not None
        [blocked] = ahead.blocked
        assert (blocked.key, blocked.concurrency, blocked.never) == ("api", 2, False)
        assert blocked.by == (lease.jobs[0].id,)
        begun += tenants(lease)
        await settle_all(store, lease)
        clock.advance(S)
    assert begun[:3] == ["", "", ""]
    assert sorted(begun[3:]) == ["x", "x", "y", "y"]


async def test_one_job_at_a_time_is_also_without_those_that_run_already(store: Store, clock: FakeClock):
    await put(store, 5, limits=("api",))
    lease = await take(store, 2)
    await rule(store, "api", rate=5, burst=9, closed_until=clock.now())
    assert await claim(store) is None
    await store.settle(lease.token, [(0, DONE)])
    assert await claim(store) is None
    await store.settle(lease.token, [(1, DONE)])
    assert len((await take(store)).jobs) == 1
    await rule(store, "api", rate=5, burst=9)
    assert len((await take(store)).jobs) == 2


# ── what can never run ───────────────────────────────────────────────────────


async def test_what_needs_more_than_there_can_be_waits_for_another_rule(store: Store, clock: FakeClock):
    await rule(store, "api", rate=50, burst=5)
    await rule(store, "disk", concurrency=2)
    [first] = await put(store, limits=("api@6",), priority=9)
    [second] = await put(store, limits=("disk@3",), priority=9)
    for id, key, concurrency in ((first, "api", None), (second, "disk", 2)):
        ahead = await store.ahead(id)
        assert ahead is not None
        [blocked] = ahead.blocked
        assert (blocked.key, blocked.concurrency, blocked.opens_at, blocked.never) == (key, concurrency, None, True)
    assert await claim(store) is None
    clock.advance(60 * S)
    assert await claim(store) is None
    # No waiter wakes for it, except by earlier hints, and it blocks no other job.
    hints = 0
    while await store.wait(["default"], 0.2):
        hints += 1
        assert hints < 5
        assert await claim(store) is None
    await put(store, 9, limits=("api",))
    lease = await take(store)
    assert len(lease.jobs) == 5
    await settle_all(store, lease)
    clock.advance(S)
    assert len((await take(store)).jobs) == 4
    assert await claim(store) is None
    await rule(store, "api", rate=50, burst=6)
    await rule(store, "disk", concurrency=3)
    clock.advance(S)
    assert set(ids(await take(store))) == {first, second}


# ── the clock ────────────────────────────────────────────────────────────────


async def test_a_clock_that_is_set_back_does_not_stop_a_rate(store: Store, clock: FakeClock):
    await rule(store, "api", rate=1, burst=2)
    await put(store, 9, limits=("api",))
    assert len((await take(store)).jobs) == 2
    clock.advance(-3600 * S)
    assert len((await take(store)).jobs) == 2
    assert await claim(store) is None
    clock.advance(S)
    assert len((await take(store)).jobs) == 1
    assert await claim(store) is None


# ── waiting and looking ──────────────────────────────────────────────────────


async def test_who_waits_for_a_rate_is_woken_when_it_refills(store: Store, clock: FakeClock):
    await rule(store, "api", rate=20, burst=1)
    await put(store, 2, limits=("api",))
    await take(store)
    assert await claim(store) is None
    assert await store.wait(["default"], 60) is True
    clock.advance(S)
    assert await claim(store) is not None


async def test_who_waits_for_a_closed_limit_is_woken_when_it_opens(store: Store, clock: FakeClock):
    await rule(store, "api", closed_until=clock.now() + 40 * MS)
    await put(store, limits=("api",))
    assert await claim(store) is None
    assert await store.wait(["default"], 60) is True


async def test_a_full_limit_says_who_holds_it(store: Store):
    await rule(store, "shop", concurrency=2)
    first, second, third = await put(store, 3, limits=("shop:1",))
    ahead = await store.ahead(first)
    assert ahead is not None
    assert ahead.blocked == ()
    await take(store)
    ahead = await store.ahead(third)
    assert ahead is not None
    [blocked] = ahead.blocked
    assert (blocked.key, blocked.concurrency, blocked.held, blocked.opens_at) == ("shop:1", 2, 2, None)
    assert set(blocked.by) == {first, second}
    assert (await look(store, third)).state is JobState.READY


async def test_an_empty_bucket_says_when_it_refills(store: Store, clock: FakeClock):
    await rule(store, "api", rate=0.5, burst=1)
    _, second = await put(store, 2, limits=("api",))
    await take(store)
    ahead = await store.ahead(second)
    assert ahead is not None
    [blocked] = ahead.blocked
    assert (blocked.key, blocked.concurrency, blocked.by) == ("api", None, ())
    assert blocked.opens_at is not None
    assert abs(blocked.opens_at - clock.now() - 2 * S) < MS


async def test_a_closed_limit_says_until_when(store: Store, clock: FakeClock):
    opens = clock.now() + 30 * S
    await rule(store, "api", closed_until=opens)
    [id] = await put(store, limits=("api",))
    ahead = await store.ahead(id)
    assert ahead is not None
    assert [(blocked.key, blocked.opens_at) for blocked in ahead.blocked] == [("api", opens)]


async def test_a_limit_that_opens_lets_the_higher_priority_go_first_also_where_other_queues_wait_for_it(
    store: Store, clock: FakeClock
):
    """What waits under the limit in a queue that this claim is not for comes before in line, and must not be in its way."""
    await rule(store, "shop", concurrency=5, closed_until=clock.now() + timedelta(seconds=10))
    await put(store, queue="other", priority=9, limits=("shop",))
    await put(store, queue="other", priority=8, limits=("shop",))
    first = await put(store, priority=5, limits=("shop",))
    assert await claim(store, 10, "default", "other") is None
    last = await put(store, priority=-3)
    clock.advance(11)
    assert ids(await take(store, 10)) == [*first, *last]
