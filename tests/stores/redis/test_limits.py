"""Limits on Redis: units live and die with leases, a blocked lane is parked and costs nothing, none is ever forgotten."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from conformance.kit import DEAD, JANITOR, RELEASE, TTL, claim, expire, new, put, put_jobs, settle_all, take
from headrace.model.job import JobState
from headrace.model.lane import split_limit
from headrace.model.lease import Lease, Token, new_token
from headrace.model.outcome import DONE, Again, Settlement
from headrace.model.records import Filter, LimitRule, Retention
from headrace.store.redis.element import lane_of, lane_parts
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import put_many

HOME = "hr:{#limits}:"


async def ask(store: RedisStore, *command: str) -> list[str]:
    answer = await store.client.wire.command(command[1], *command)
    return [word.decode(errors="replace") if isinstance(word, bytes) else str(word) for word in answer]


async def held(store: RedisStore) -> Counter[str]:
    found = await ask(store, "HGETALL", HOME + "#u")
    return Counter({key: int(units) for key, units in zip(found[::2], found[1::2], strict=True)})


async def running(store: RedisStore) -> Counter[str]:
    """Units by the jobs themselves."""
    page = await store.find(Filter(states=frozenset({JobState.RUNNING})), limit=10_000)
    units: Counter[str] = Counter()
    for job in page.jobs:
        for limit in job.limits:
            _, key, cost = split_limit(limit)
            units[key] += cost
    return units


def expanded(entries: list[str], subrings: dict[str, list[str]]) -> Iterator[str]:
    for entry in entries:
        if entry.endswith("*"):
            yield from subrings[entry[:-2]]
        else:
            yield entry


async def audit(store: RedisStore, queue: str = "default") -> None:
    """A lane that has work is in a ring or parked, and in one place only; units are those of running jobs."""
    assert await held(store) == await running(store)
    prefix = f"hr:{{{queue}}}:"
    active = {*await ask(store, "HKEYS", prefix + "h"), *await ask(store, "SMEMBERS", prefix + "b")}
    subrings = {
        whose: await ask(store, "LRANGE", f"{prefix}T:{whose}", "0", "-1")
        for whose in await ask(store, "SMEMBERS", prefix + "S")
    }
    assert all(subrings.values()), "an empty ring of a tenant"
    places: list[str] = []
    for priority in await ask(store, "ZRANGE", prefix + "P", "0", "-1"):
        ring = await ask(store, "LRANGE", f"{prefix}R:{priority}", "0", "-1")
        assert ring
        places += ring
    parked = await ask(store, "HGETALL", prefix + "K")
    by_key: Counter[str] = Counter(parked[1::2])
    for key, count in by_key.items():
        lanes = await ask(store, "ZRANGE", f"{HOME}#k:{key}", "0", "-1")
        assert sum(lane.startswith(prefix) for lane in lanes) == count
    places += parked[::2]
    assert max(Counter(places).values(), default=1) == 1
    assert Counter(expanded(places, subrings)) == Counter(active)
    singles = await ask(store, "HGETALL", prefix + "s")
    direct = {lane for lane in places if lane.endswith("\1") and lane not in parked}
    assert set(singles[1::2]) == direct
    gaps = await ask(store, "HGETALL", prefix + "x")
    for lane, count in zip(gaps[::2], gaps[1::2], strict=True):
        assert (await ask(store, "LRANGE", f"{prefix}L:{lane}", "0", "-1")).count("") == int(count)


LIMITS = [
    (),
    (),
    ("api",),
    ("api@2",),
    ("shop:1",),
    ("shop:2", "api"),
    ("slow",),
    ("slow", "shop@2:1"),
    ("slow@2",),
    ("free",),
]
ENDS: list[Settlement] = [DONE, DONE, DEAD, RELEASE, Again(0, 0, due=timedelta(seconds=3)), Again(0, 1, suspect=True)]
RULES = {
    "api": LimitRule(concurrency=3),
    "shop": LimitRule(concurrency=2),
    "shop:2": LimitRule(concurrency=1),
    "slow": LimitRule(rate=1.0, burst=2.0),
}


@pytest.mark.parametrize("seed", range(12))
async def test_a_wild_life_under_limits(store: RedisStore, server: RedisServer, clock: FakeClock, seed: int):
    chance = random.Random(seed)
    versions: dict[str, int | None] = {}
    leases: list[Lease] = []
    made = []
    for name, rule in RULES.items():
        versions[name] = await store.limit(name, rule, None)
    for _ in range(80):
        jobs = [
            new(
                tenant=chance.choice(["", "a", "b"]),
                priority=chance.choice([0, 0, 5]),
                limits=chance.choice(LIMITS),
                due=chance.choice([None, None, timedelta(seconds=2)]),
            )
            for _ in range(chance.randint(0, 4))
        ]
        made += await put_jobs(store, *jobs) if jobs else []
        if lease := await claim(store, chance.choice([1, 3, 10])):
            leases.append(lease)
        if leases and chance.random() < 0.6:
            one = leases.pop(chance.randrange(len(leases)))
            some = chance.sample(range(len(one.jobs)), chance.randint(1, len(one.jobs)))
            if chance.random() < 0.2:
                fresh = new_token()
                if await store.detach(one.token, some.pop(), fresh):
                    leases.append(Lease(fresh, one.jobs[:1]))
            await store.settle(one.token, [(at, chance.choice(ENDS)) for at in some])
            leases.append(one)
        few = chance.sample(made, min(2, len(made)))
        await chance.choice([store.cancel, store.retry, store.delete, store.get])(few)
        if chance.random() < 0.15:
            name = chance.choice(list(RULES))
            rule = chance.choice([RULES[name], LimitRule(concurrency=1), LimitRule(concurrency=9, rate=2.0, burst=3.0)])
            versions[name] = await store.limit(name, rule, versions[name])
        if chance.random() < 0.15:
            tenant = chance.choice(["a", "b"])
            until = clock.now() + timedelta(seconds=2) if chance.random() < 0.5 else None
            await store.pause(tenant, kind="tenant", until=until)
        if chance.random() < 0.3:
            await store.resume(chance.choice(["a", "b"]), kind="tenant")
        clock.advance(chance.choice([0, 0.3, 1, 4]))
        await store.promote()
        if chance.random() < 0.15:
            clock.advance(20)
            leases = [Lease(o.token, [j for _, j in o.jobs]) for o in await store.reap(JANITOR, TTL, limit=1000)]
            for orphan in leases:
                await store.settle(orphan.token, [(0, RELEASE)])
        await audit(store)
    for name, rule in RULES.items():
        await store.limit(name, rule, versions[name])
    await at_rest(store, clock)
    assert await held(store) == {}
    while (await store.prune(Retention(done=timedelta(0), dead=timedelta(0)))).more:
        pass
    await expire(store, Retention(done=timedelta(0), dead=timedelta(0)))
    await store.prune(Retention(done=timedelta(0), dead=timedelta(0)))
    keys = {key for key in server.command("KEYS", "*").split("\n") if "{" in key}
    # `#m` is a hint that nothing has taken. It expires within a minute.
    assert keys - {HOME + "#r", HOME + "d", HOME + "#b", HOME + "#m"} == {"hr:{default}:d", "hr:{default}:y"}


async def at_rest(store: RedisStore, clock: FakeClock) -> None:
    """Whatever waits gets done in the end: nothing is parked for ever."""
    for tenant in ("a", "b"):
        await store.resume(tenant, kind="tenant")
    idle = 0
    while idle < 3:
        clock.advance(20)
        await store.promote()
        for orphan in await store.reap(JANITOR, TTL, limit=1000):
            await store.settle(orphan.token, [(at, DONE) for at, _ in orphan.jobs])
        lease = await claim(store)
        idle = 0 if lease else idle + 1
        if lease:
            await settle_all(store, lease)
        await audit(store)
    assert (await store.find(Filter(states=frozenset({JobState.READY, JobState.RUNNING})))).jobs == []


async def commands_of(store: RedisStore, server: RedisServer) -> int:
    """Commands that a claim which finds nothing takes, those inside of the script included."""
    server.command("CONFIG", "RESETSTAT")
    assert await claim(store) is None
    lines = server.command("INFO", "commandstats").splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)


async def test_blocked_lanes_cost_a_claim_nothing(store: RedisStore, server: RedisServer):
    await store.limit("api", LimitRule(concurrency=1), None)
    await put(store, 1, limits=("api",))
    lease = await take(store)
    assert await claim(store) is None
    before = await commands_of(store, server)
    for tenant in range(300):
        await put(store, 1, tenant=f"t{tenant}", limits=("api",))
    assert await claim(store) is None
    assert await commands_of(store, server) <= before + 2
    # Each unit given back tries one of them, not all.
    await settle_all(store, lease)
    await take(store, 1)
    assert await claim(store) is None
    assert await commands_of(store, server) <= before + 2
    await audit(store)


async def test_a_queue_that_nobody_serves_keeps_no_units_from_the_others(store: RedisStore):
    await store.limit("api", LimitRule(concurrency=1), None)
    await put(store, 1, queue="ours", limits=("api",))
    first = await take(store, 1, "ours")
    for queue in ("theirs", "theirs", "ours"):
        await put(store, 1, queue=queue, limits=("api",))
        assert await claim(store, 1, queue) is None
    await settle_all(store, first)
    assert len((await take(store, 1, "ours")).jobs) == 1


async def test_a_lane_that_needs_more_units_than_are_free_is_tried_once(store: RedisStore, server: RedisServer):
    await store.limit("api", LimitRule(concurrency=3), None)
    await put(store, 2, limits=("api@2",))
    await put(store, 1, tenant="other", limits=("api",))
    wide = await take(store, 1)
    assert len((await take(store)).jobs) == 1
    await store.limit("api", LimitRule(concurrency=4), (await store.limits())["api"].version)
    assert await claim(store) is None
    assert await claim(store) is None
    before = await commands_of(store, server)
    assert await commands_of(store, server) == before
    await settle_all(store, wide)
    assert len((await take(store)).jobs) == 1


async def test_a_lane_that_needs_more_of_a_rate_is_not_forgotten(store: RedisStore, clock: FakeClock):
    """It waits while others, which need less, are let go before it and take what there is."""
    await store.limit("slow", LimitRule(rate=1.0, burst=3.0), None)
    await put(store, 3, tenant="narrow", limits=("slow",))
    await take(store, 3)
    await put(store, 1, tenant="wide", limits=("slow@3",))
    await put(store, 2, tenant="narrow", limits=("slow",))
    assert await claim(store) is None
    got: list[str] = []
    for _ in range(12):
        clock.advance(1)
        got += [job.tenant for job in lease.jobs] if (lease := await claim(store)) else []
        await audit(store)
    assert sorted(got) == ["narrow", "narrow", "wide"]


async def test_a_new_rule_counts_what_runs_already(store: RedisStore):
    await put(store, 5, limits=("api",))
    await take(store, 3)
    await store.limit("api", LimitRule(concurrency=4), None)
    assert len((await take(store)).jobs) == 1
    assert await claim(store) is None


async def test_names_of_keys_may_hold_anything_printable(store: RedisStore):
    strange = ("a|b:*", "c d@2:e|", "ü:*|", "1|2|*")
    await store.limit("a|b", LimitRule(concurrency=1), None)
    await put(store, 2, tenant="x|*", limits=strange)
    await put(store, 1, tenant="x|*")
    lease = await take(store)
    assert {job.tenant for job in lease.jobs} == {"x|*"}
    assert len(lease.jobs) == 2
    [view] = await store.lanes(["default"])
    assert (view.tenant, view.jobs) == ("x|*", 1)
    await audit(store)
    name = "-3|x|*|\1a|b:*\1c d@2:e|\1"
    assert lane_parts(name) == (-3, "x|*")
    assert lane_of(name, "q").limits == ("a|b:*", "c d@2:e|")


async def test_a_settle_of_a_thousand_keys_wakes_what_they_block(store: RedisStore):
    await store.limit("shop", LimitRule(concurrency=1), None)
    await put_many(store, [new(tenant=f"t{n}", limits=(f"shop:{n}",)) for n in range(1000)] * 2)
    leases: list[Lease] = []
    while lease := await claim(store, 1000):
        leases.append(lease)
    assert sum(len(lease.jobs) for lease in leases) == 1000
    for lease in leases:
        await settle_all(store, lease)
    again = 0
    while lease := await claim(store, 1000):
        again += len(lease.jobs)
    assert again == 1000
    await audit(store)


async def test_a_token_that_is_unknown_reports_nothing(store: RedisStore):
    assert await store.report(Token(new_token()), []) == frozenset()
