"""A wild life in which one answer in four is lost, once or twice: no job is lost, and nothing stays behind."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from conformance.kit import (
    DEAD,
    JANITOR,
    RELEASE,
    SUSPECT,
    TTL,
    WORKER,
    batch,
    claim,
    expire,
    new,
    rule,
    settle_all,
    states,
)
from headrace.errors import OutcomeUnknown
from headrace.model.job import JobId, JobState, job_id
from headrace.model.lease import Ask, Token, new_token
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Retention
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.proxy import Proxy, between

T = TypeVar("T")
AT_ONCE = Retention(done=timedelta(0), dead=timedelta(0))
QUEUES = ("a", "b")
ENDS = [DONE, DONE, RELEASE, DEAD, SUSPECT, Again(1, 0, due=timedelta(seconds=5)), Finish(JobState.DONE, result=b"r")]


class Life:
    def __init__(self, store: RedisStore, proxy: Proxy, clock: FakeClock, seed: int) -> None:
        self.store, self.proxy, self.clock = store, proxy, clock
        self.chance = random.Random(seed)
        self.made: list[JobId] = []
        self.leases: dict[Token, set[int]] = {}

    async def again(self, verb: Callable[[], Awaitable[T]]) -> T:
        """What a caller does that may repeat a call."""
        while True:
            try:
                return await verb()
            except OutcomeUnknown:
                continue

    async def enqueue(self) -> None:
        chance = self.chance
        jobs = [
            new(
                queue=chance.choice(QUEUES),
                tenant=chance.choice(["", "x", "y"]),
                priority=chance.choice([0, 5]),
                limits=chance.choice([(), ("few",), ("few@2:k",)]),
                due=chance.choice([None, None, timedelta(seconds=chance.randint(1, 20))]),
            )
            for _ in range(chance.randint(1, 6))
        ]
        made = batch(*jobs)
        await self.again(lambda: self.store.enqueue(made))
        self.made += [job_id(made.id, ord) for ord in range(len(jobs))]

    async def claim(self) -> None:
        queues = tuple(self.chance.sample(QUEUES, self.chance.randint(1, 2)))
        ask = Ask(WORKER, queues, self.chance.randint(1, 7), TTL, new_token())
        if lease := await self.again(lambda: self.store.claim(ask)):
            self.leases[lease.token] = set(range(len(lease.jobs)))

    async def settle(self) -> None:
        if not self.leases:
            return
        token = self.chance.choice(list(self.leases))
        left = self.leases[token]
        some = self.chance.sample(sorted(left), self.chance.randint(1, len(left)))
        ends = [(position, self.chance.choice(ENDS)) for position in some]
        await self.again(lambda: self.store.settle(token, ends))
        left -= set(some)
        if not left:
            del self.leases[token]

    async def reap(self) -> None:
        self.clock.advance(self.chance.choice([1, 5, 16]))
        try:
            orphans = await self.store.reap(JANITOR, TTL)
        except OutcomeUnknown:
            return
        self.leases.update((orphan.token, {position for position, _ in orphan.jobs}) for orphan in orphans)

    async def promote(self) -> None:
        self.clock.advance(self.chance.randint(1, 12))
        await self.again(self.store.promote)

    async def live(self, steps: int) -> None:
        verbs = [self.enqueue, self.claim, self.settle, self.settle, self.reap, self.promote]
        for _ in range(steps):
            self.proxy.cut_answers = self.chance.choice([0, 0, 0, 0, 0, 0, 1, 2])
            await self.chance.choice(verbs)()
            self.proxy.cut_answers = 0

    async def end(self) -> None:
        """Until everything that was due has come back and is done."""
        for _ in range(5):
            self.clock.advance(30)
            await self.store.promote()
            while orphans := await self.store.reap(JANITOR, TTL):
                for orphan in orphans:
                    ends = [(position, DONE) for position, _ in orphan.jobs]
                    assert await self.store.settle(orphan.token, ends) == frozenset()
            while lease := await claim(self.store, 50, *QUEUES):
                await settle_all(self.store, lease)


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_and_nothing_stays(server: RedisServer, clock: FakeClock, seed: int):
    server.command("FLUSHALL")
    async with between(server) as proxy:
        store = RedisStore(proxy.url, clock=clock)
        await store.open()
        await rule(store, "few", concurrency=3)
        life = Life(store, proxy, clock, seed)
        await life.live(200)
        await life.end()
        assert proxy.cuts > 20
        assert set(await states(store, life.made)) <= {JobState.DONE, JobState.DEAD}
        assert server.command("HLEN", "hr:{#limits}:#u") == "0"
        while (await store.prune(AT_ONCE)).more:
            pass
        await expire(store, AT_ONCE)
        await store.prune(AT_ONCE)
        for queue in QUEUES:
            kept = server.command("KEYS", f"hr:{{{queue}}}:*").split("\n")
            assert {key[-1] for key in kept if key} <= {"d", "y"}
        await store.close()
