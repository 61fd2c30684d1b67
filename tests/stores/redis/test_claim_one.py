"""A few jobs of one plain lane are claimed by the first part of the script: with few commands, and with the keys of the rest."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from conformance.kit import RELEASE, SUSPECT, WORKER, batch, claim, new, put
from headrace.model.gate import NewGate, Wait
from headrace.model.job import Batch, JobId, job_id, new_batch
from headrace.model.lease import Lease, new_token
from headrace.model.outcome import DONE
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import take_general_scripts
from stores.redis.test_enqueue_one import commands, content
from stores.redis.test_settle_one import some_links


@pytest.fixture
async def general(server: RedisServer, clock: FakeClock, store: RedisStore) -> AsyncIterator[RedisStore]:
    """A store beside `store` on the same server."""
    general = RedisStore(server.url(prefix="gs"), clock=clock)
    take_general_scripts(general)
    await general.open()
    yield general
    await general.close()


async def test_a_plain_job_is_claimed_by_fifteen_commands(real_store: RedisStore, server: RedisServer):
    await put(real_store)
    assert await claim(real_store) is not None
    await put(real_store)
    server.command("CONFIG", "RESETSTAT")
    assert await claim(real_store) is not None
    assert sum(commands(server).values()) == 15


async def test_a_job_that_another_one_let_go_is_claimed_by_sixteen_commands(
    real_store: RedisStore, server: RedisServer
):
    id = new_batch()
    waiting = [new(wait=Wait(job_id(id, place))) for place in range(20)]
    await real_store.enqueue(Batch(id, [new(), *waiting]))
    for _ in range(3):
        lease = await claim(real_store)
        assert lease is not None
        await real_store.settle(lease.token, [(0, DONE)])
    server.command("CONFIG", "RESETSTAT")
    assert await claim(real_store) is not None
    assert sum(commands(server).values()) == 16


async def test_a_job_that_came_back_is_claimed_by_eighteen_commands(real_store: RedisStore, server: RedisServer):
    await put(real_store)
    for _ in range(2):
        lease = await claim(real_store)
        assert lease is not None
        await real_store.settle(lease.token, [(0, RELEASE)])
    server.command("CONFIG", "RESETSTAT")
    assert await claim(real_store) is not None
    assert sum(commands(server).values()) == 18


@pytest.mark.parametrize("seed", range(9))
async def test_the_short_part_leaves_the_keys_of_the_general_ones(
    store: RedisStore, general: RedisStore, server: RedisServer, seed: int
):
    chance = random.Random(seed)
    both = (store, general)
    leases: list[tuple[Lease, Lease]] = []
    stored: list[JobId] = []
    odd, linked = seed % 2 == 0, seed % 3 == 0
    gates: list[NewGate] = []
    for step in range(160):
        act = chance.choice(
            ["put", "put", "link", "claim", "claim", "claim", "settle", "settle", "cancel", "pause", "resume", "resume"]
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
        elif act == "link" and linked:
            jobs = some_links(chance, gates)
            for each in both:
                await each.enqueue(jobs)
        elif act == "claim":
            token, limit = new_token(), chance.choice([1, 3, 16, 100, 100])
            short = long = None
            # The second time the answer of the first time was lost.
            for _ in range(chance.choice([1, 1, 2])):
                short = await claim(store, limit, worker=WORKER, token=token)
                long = await claim(general, limit, worker=WORKER, token=token)
                assert (short and short.jobs) == (long and long.jobs)
            if short is not None and long is not None:
                leases.append((short, long))
        elif act == "settle" and leases:
            pair = leases.pop(chance.randrange(len(leases)))
            ends = [(place, chance.choice([DONE, DONE, DONE, RELEASE])) for place in range(len(pair[0].jobs))]
            if not odd:
                # Often every job that waits came back.
                end = chance.choice([DONE, RELEASE, RELEASE, SUSPECT])
                ends = [(place, end) for place, _ in ends]
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
            assert content(server, "hr") == content(server, "gs")
