"""`find` reads what is short: the same jobs as by looking at all of them, and not all of them looked at."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import combinations

import pytest

from conformance.kit import (
    DEAD,
    RELEASE,
    SECOND,
    TTL,
    claim,
    failure,
    find_all,
    new,
    put,
    put_jobs,
    settle_all,
    take,
)
from headrace.model.gate import Needs, Wait
from headrace.model.job import JobState
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Filter
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.test_bounds import scripts_run

ENDS = [
    DONE,
    Finish(JobState.DONE, result=b"r"),
    Finish(JobState.DONE, note="n"),
    DEAD,
    Finish(JobState.CANCELLED, note="n"),
    RELEASE,
    Again(1, 0, due=timedelta(seconds=50), failure=failure()),
]


@pytest.mark.parametrize("few", [0, 10_000])
@pytest.mark.parametrize("seed", range(3))
async def test_by_every_set_of_states(
    store: RedisStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
):
    monkeypatch.setattr("headrace.store.redis.verbs.find._FEW", few)
    chance = random.Random(seed)
    made = []
    for _ in range(20):
        due = timedelta(seconds=30) if chance.random() < 0.2 else None
        made += await put_jobs(store, *[new(due=due) for _ in range(chance.randint(1, 12))])
        made += await put(store, wait=Wait(chance.choice(made), chance.choice(list(Needs))))
        if lease := await claim(store, chance.choice([1, 3, 9])):
            some = chance.sample(range(len(lease.jobs)), chance.randint(0, len(lease.jobs)))
            if some and chance.random() < 0.3:
                assert await store.detach(lease.token, some.pop(), new_token())
            await store.settle(lease.token, [(at, chance.choice(ENDS)) for at in some])
        await chance.choice([store.cancel, store.retry, store.delete])(chance.sample(made, min(2, len(made))))
        clock.advance(1)
    everything = await find_all(store)
    assert {job.state for job in everything} == set(JobState)
    for count in range(1, len(JobState) + 1):
        for states in combinations(JobState, count):
            found = await find_all(store, Filter(states=frozenset(states)), limit=30)
            assert [job.id for job in found] == [job.id for job in everything if job.state in states]


async def test_by_time(store: RedisStore, clock: FakeClock):
    begun = clock.now()
    made = []
    for _ in range(10):
        made.append(await put(store, 5))
        clock.advance(1)
    await store.delete([made[4][0], made[5][4]])
    for low in range(11):
        found = await find_all(store, Filter(since=begun + low * SECOND), limit=7)
        expected = [id for ids in made[low:] for id in ids if id not in {made[4][0], made[5][4]}]
        assert sorted(job.id for job in found) == sorted(expected)
        found = await find_all(store, Filter(until=begun + low * SECOND), limit=7)
        expected = [id for ids in made[:low] for id in ids if id not in {made[4][0], made[5][4]}]
        assert sorted(job.id for job in found) == sorted(expected)


async def test_among_many_that_wait(store: RedisStore, server: RedisServer, clock: FakeClock):
    """Thousands of jobs, a handful of scripts."""
    [done] = await put(store, 1)
    await settle_all(store, await take(store))
    [running] = await put(store, 1)
    await take(store, 1)
    [later] = await put(store, 1, due=TTL)
    for _ in range(5):
        await put(store, 1000)
    await store.find(Filter(states=frozenset({JobState.DONE})))  # the server knows the scripts from here on
    wanted = [
        (Filter(states=frozenset({JobState.DONE})), [done]),
        (Filter(states=frozenset({JobState.RUNNING})), [running]),
        (Filter(states=frozenset({JobState.SCHEDULED})), [later]),
        (Filter(states=frozenset({JobState.SCHEDULED, JobState.RUNNING, JobState.DONE})), [later, running, done]),
        (Filter(states=frozenset({JobState.DEAD, JobState.SCHEDULED})), [later]),
        (Filter(since=clock.now() + SECOND), []),
    ]
    for where, expected in wanted:
        before = scripts_run(server)
        assert [job.id for job in (await store.find(where)).jobs] == expected
        assert scripts_run(server) - before <= 6


async def test_running_jobs_of_many_leases(store: RedisStore, server: RedisServer):
    made = await put(store, 1000) + await put(store, 1000)
    for _ in range(40):
        await take(store, 50)
    before = scripts_run(server)
    page = await store.find(Filter(states=frozenset({JobState.RUNNING})), limit=50)
    assert [job.id for job in page.jobs] == made[:-51:-1]
    assert scripts_run(server) - before <= 8
    assert [job.id for job in await find_all(store, Filter(states=frozenset({JobState.RUNNING})), limit=600)] == made[
        ::-1
    ]
