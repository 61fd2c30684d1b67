"""A lease of one plain job that is done is settled by the first part of the script: with few commands, and with the keys of the rest."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from conformance.kit import RELEASE, WORKER, batch, claim, new, put
from headrace.model.job import JobState
from headrace.model.lease import Lease, new_token
from headrace.model.outcome import DONE, Finish
from headrace.store.redis.store import RedisStore
from headrace.store.redis.verbs.settle import Settle
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.test_enqueue_one import commands, content


@pytest.fixture
async def general(server: RedisServer, clock: FakeClock, store: RedisStore) -> AsyncIterator[RedisStore]:
    """A store beside `store` on the same server."""
    general = RedisStore(server.url(prefix="general"), clock=clock)
    await general.open()
    yield general
    await general.close()


def take_general_script(store: RedisStore) -> None:
    """The next settlement of this store goes by the script for queues with links, which has no short part."""
    settling: object = getattr(store.settle, "__self__", None)
    assert isinstance(settling, Settle)
    settling._linked.add("default")


async def test_a_plain_job_is_settled_by_fifteen_commands(real_store: RedisStore, server: RedisServer):
    for _ in range(2):
        await put(real_store)
        lease = await claim(real_store)
        assert lease is not None
        server.command("CONFIG", "RESETSTAT")
        assert await real_store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert sum(commands(server).values()) == 15


async def test_the_last_ten_thousand_tokens_are_kept(real_store: RedisStore, server: RedisServer):
    await put(real_store)
    lease = await claim(real_store)
    assert lease is not None
    server.command("EVAL", "for i = 1, 10000 do redis.call('LPUSH', KEYS[1], i) end", "1", "hr:{default}:y")
    await real_store.settle(lease.token, [(0, DONE)])
    assert server.command("LLEN", "hr:{default}:y").strip() == "10000"


@pytest.mark.parametrize("seed", range(4))
async def test_the_short_part_leaves_the_keys_of_the_general_ones(
    store: RedisStore, general: RedisStore, server: RedisServer, seed: int
):
    chance = random.Random(seed)
    both = (store, general)
    leases: list[tuple[Lease, Lease]] = []
    ended: list[tuple[Lease, Lease]] = []
    for step in range(160):
        act = chance.choice(["put", "put", "claim", "claim", "settle", "settle", "again"])
        if act == "put":
            job = new(
                tenant=chance.choice(["", "", "acme"]),
                limits=("stripe",) if chance.random() < 0.1 else (),
                options=chance.choice([None, b"\x80"]),
            )
            jobs = batch(*[job] * chance.choice([1, 1, 1, 3]))
            for each in both:
                await each.enqueue(jobs)
        elif act == "claim":
            token, limit = new_token(), chance.choice([1, 1, 1, 2])
            short, long = [await claim(each, limit, worker=WORKER, token=token) for each in both]
            assert (short and short.jobs) == (long and long.jobs)
            if short is not None and long is not None:
                leases.append((short, long))
        elif act == "settle" and leases:
            pair = leases.pop(chance.randrange(len(leases)))
            how = chance.choice([DONE, DONE, DONE, RELEASE, Finish(JobState.DONE, result=b"\x01")])
            take_general_script(general)
            for each, lease in zip(both, pair, strict=True):
                assert not await each.settle(lease.token, [(place, how) for place in range(len(lease.jobs))])
            ended.append(pair)
        elif act == "again" and ended:
            pair = chance.choice(ended)
            take_general_script(general)
            refused = [await each.settle(lease.token, [(0, DONE)]) for each, lease in zip(both, pair, strict=True)]
            assert refused[0] == refused[1]
        if step % 10 == 9:
            assert content(server, "hr") == content(server, "general")
