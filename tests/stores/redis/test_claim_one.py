"""A few jobs of one plain lane are claimed by the first part of the script: with few commands, and with the keys of the rest."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from conformance.kit import RELEASE, WORKER, batch, claim, new, put
from headrace.model.job import JobId, job_id
from headrace.model.lease import Lease, Token, new_token
from headrace.model.outcome import DONE
from headrace.store.redis.store import RedisStore
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


async def claim_in_general(store: RedisStore, limit: int, token: Token) -> Lease | None:
    """A claim from two queues, of which one has no jobs. The short part leaves that to the rest of the script."""
    return await claim(store, limit, "default", "empty", worker=WORKER, token=token)


async def test_a_plain_job_is_claimed_by_fifteen_commands(real_store: RedisStore, server: RedisServer):
    await put(real_store)
    assert await claim(real_store) is not None
    await put(real_store)
    server.command("CONFIG", "RESETSTAT")
    assert await claim(real_store) is not None
    assert sum(commands(server).values()) == 15


@pytest.mark.parametrize("seed", range(6))
async def test_the_short_part_leaves_the_keys_of_the_general_ones(
    store: RedisStore, general: RedisStore, server: RedisServer, seed: int
):
    chance = random.Random(seed)
    both = (store, general)
    leases: list[tuple[Lease, Lease]] = []
    stored: list[JobId] = []
    odd = seed % 2 == 0
    for step in range(160):
        act = chance.choice(
            ["put", "put", "claim", "claim", "claim", "settle", "settle", "cancel", "pause", "resume", "resume"]
        )
        if act == "put":
            job = new(
                priority=chance.choice([0, 0, 0, 5]) if odd else 0,
                tenant=chance.choice(["", "", "", "acme", "*"]) if odd else chance.choice(["", "*"]),
                limits=("stripe",) if odd and chance.random() < 0.1 else (),
            )
            jobs = batch(*[job] * chance.choice([1, 1, 2, 5, 16, 17]))
            stored += [job_id(jobs.id, ord) for ord in range(len(jobs.jobs))]
            for each in both:
                await each.enqueue(jobs)
        elif act == "claim":
            token, limit = new_token(), chance.choice([1, 3, 16, 100, 100])
            short = long = None
            # The second time the answer of the first time was lost.
            for _ in range(chance.choice([1, 1, 2])):
                short = await claim(store, limit, worker=WORKER, token=token)
                long = await claim_in_general(general, limit, token)
                assert (short and short.jobs) == (long and long.jobs)
            if short is not None and long is not None:
                leases.append((short, long))
        elif act == "settle" and leases:
            pair = leases.pop(chance.randrange(len(leases)))
            ends = [(place, chance.choice([DONE, DONE, DONE, RELEASE])) for place in range(len(pair[0].jobs))]
            ends = ends if odd else [(place, DONE) for place, _ in ends]
            for each, lease in zip(both, pair, strict=True):
                await each.settle(lease.token, ends)
        elif act == "cancel" and stored and chance.random() < 0.5:
            job_to_cancel = chance.choice(stored[-20:])
            for each in both:
                await each.cancel([job_to_cancel])
        elif act == "resume" or (act == "pause" and chance.random() < 0.3):
            for each in both:
                if act == "pause":
                    await each.pause("default", by="test")
                else:
                    await each.resume("default")
        if step % 10 == 9:
            assert content(server, "hr") == content(server, "general")
