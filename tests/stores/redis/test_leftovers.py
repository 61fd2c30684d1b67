"""What is gone is gone: no key, field or member outlives the last job that needs it."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from conformance.kit import (
    DEAD,
    JANITOR,
    RELEASE,
    TTL,
    claim,
    expire,
    failure,
    find_all,
    new,
    put_jobs,
    settle_all,
    take,
)
from headrace.model.job import JobState
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Retention
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer

AT_ONCE = Retention(done=timedelta(0), dead=timedelta(0))
FOR_GOOD = {"d", "y"}
"""Counters, and the last tokens: bounded, and one each per queue."""
ENDS = [
    DONE,
    DONE,
    Finish(JobState.DONE, result=b"r"),
    Finish(JobState.DONE, note="n", result=b"r"),
    DEAD,
    Finish(JobState.DEAD, failure=failure(), failures=1),
    Finish(JobState.CANCELLED, note="n"),
    RELEASE,
    Again(1, 0, due=timedelta(seconds=5), failure=failure()),
    Again(0, 1, suspect=True),
]


def kept(server: RedisServer, queue: str = "default") -> set[str]:
    prefix = f"hr:{{{queue}}}:"
    return {key.removeprefix(prefix) for key in server.command("KEYS", "*").split("\n") if key.startswith(prefix)}


async def test_an_idle_queue_that_never_held_anything_back_is_counters_only(store: RedisStore, server: RedisServer):
    await put_jobs(store, *[new(tenant=f"t{n}", priority=n % 3) for n in range(50)])
    await settle_all(store, await take(store))
    assert not {key for key in kept(server) if key[0] in "LBRTPhoZtscvw"} - {"c"}
    await store.prune(AT_ONCE)
    assert kept(server) == FOR_GOOD


@pytest.mark.parametrize("seed", range(6))
async def test_a_wild_life_leaves_nothing(store: RedisStore, server: RedisServer, clock: FakeClock, seed: int):
    chance = random.Random(seed)
    made = []
    for _ in range(60):
        tenants = [chance.choice(["", "a", "b"]) for _ in range(chance.randint(1, 4))]
        due = timedelta(seconds=3) if chance.random() < 0.2 else None
        limits = ("l:1",) if chance.random() < 0.2 else ()
        made += await put_jobs(store, *[new(tenant=t, due=due, limits=limits) for t in tenants])
        lease = await claim(store, chance.choice([1, 3, 10]))
        if lease:
            count = len(lease.jobs)
            some = chance.sample(range(count), chance.randint(0, count))
            if some and chance.random() < 0.3:
                assert await store.detach(lease.token, some.pop(), new_token())
            await store.settle(lease.token, [(at, chance.choice(ENDS)) for at in some])
        few = chance.sample(made, min(3, len(made)))
        await chance.choice([store.cancel, store.retry, store.delete, store.get])(few)
        clock.advance(chance.choice([0, 1, 5]))
        await store.promote()
        if chance.random() < 0.2:
            clock.advance(20)
            for orphan in await store.reap(JANITOR, TTL):
                await store.settle(orphan.token, [(at, RELEASE) for at, _ in orphan.jobs])
        if chance.random() < 0.2:
            await store.prune(AT_ONCE, limit=7)
    clock.advance(100)
    await store.promote()
    for orphan in await store.reap(JANITOR, TTL, limit=1000):
        await store.settle(orphan.token, [(at, DONE) for at, _ in orphan.jobs])
    while lease := await claim(store):
        await settle_all(store, lease)
    while (await store.prune(AT_ONCE)).more:
        pass
    await expire(store, AT_ONCE)
    await store.prune(AT_ONCE)
    assert await find_all(store) == []
    assert kept(server) == FOR_GOOD


async def test_deleting_everything_leaves_nothing_after_a_prune(store: RedisStore, server: RedisServer):
    made = await put_jobs(store, *[new() for _ in range(5)], new(due=TTL))
    await settle_all(store, await take(store, 2), DEAD)
    await settle_all(store, await take(store, 1))
    assert await store.delete(made) == set(made)
    assert await claim(store) is None
    await store.prune(AT_ONCE)
    assert kept(server) == FOR_GOOD
