"""A lease of one job that is done is settled by the first part of the script: with few commands, and with the keys of the rest.

The job may be a member of a gate that stays open.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from conformance.kit import LONG, RELEASE, WORKER, claim, new, put, take
from conformance.test_gates import a_gate
from headrace.model.gate import Counts, Edge, NewGate, Wait
from headrace.model.job import Batch, JobId, JobState, job_id, new_batch
from headrace.model.lease import Lease, new_token
from headrace.model.outcome import DONE, Finish
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import take_general_scripts
from stores.redis.test_enqueue_one import commands, content


@pytest.fixture
async def general(server: RedisServer, clock: FakeClock, store: RedisStore) -> AsyncIterator[RedisStore]:
    """A store beside `store` on the same server."""
    general = RedisStore(server.url(prefix="gs"), clock=clock)
    take_general_scripts(general)
    await general.open()
    yield general
    await general.close()


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


async def put_members(store: RedisStore, count: int, gate: NewGate) -> None:
    id = new_batch()
    await store.enqueue(Batch(id, [new()] * count, (gate,), (Edge(job_id(id, 0), job_id(id, count - 1), gate.id),)))


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_member_costs_three_or_four_commands_more(real_store: RedisStore, server: RedisServer, sealed: bool):
    gate = a_gate(sealed=sealed)
    await put_members(real_store, 3, gate)
    for done in (1, 2):
        lease = await take(real_store, 1)
        server.command("CONFIG", "RESETSTAT")
        assert await real_store.settle(lease.token, [(0, DONE)]) == frozenset()
        assert sum(commands(server).values()) == (18 if sealed else 19)
        [found] = await real_store.gates([gate.id])
        assert found is not None
        assert found.counts == Counts(3, done=done)


async def test_the_last_member_opens_the_gate(real_store: RedisStore):
    gate = a_gate()
    await put_members(real_store, 2, gate)
    await real_store.enqueue(Batch(new_batch(), [new(queue="then", wait=Wait(gate.id))]))
    for _ in range(2):
        assert await claim(real_store, 1, "then") is None
        lease = await take(real_store, 1)
        await real_store.settle(lease.token, [(0, DONE)])
    assert await claim(real_store, 1, "then") is not None


async def test_a_job_of_a_closed_lane_is_settled_by_fifteen_commands(real_store: RedisStore, server: RedisServer):
    gate = a_gate(signalled=True)
    await real_store.enqueue(Batch(new_batch(), [new(wait=Wait(gate.id))] * 64, (gate,)))
    await real_store.signal(gate, b"", LONG)
    for _ in range(2):
        lease = await take(real_store, 1)
        server.command("CONFIG", "RESETSTAT")
        assert await real_store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert sum(commands(server).values()) == 15


def some_links(chance: random.Random, gates: list[NewGate]) -> Batch:
    """A call whose jobs are members, are awaited, or wait together or one for the other."""
    id, size = new_batch(), chance.choice([2, 3, 4])
    ids: list[JobId] = [job_id(id, place) for place in range(70)]
    match chance.choice(["group", "group", "group", "chord", "short chain", "chain", "fan out"]):
        case "group":
            gates.append(a_gate(sealed=chance.random() < 0.7))
            after = [new(wait=Wait(gates[-1].id))] * chance.choice([0, 0, 1, 64])
            edge = Edge(ids[0], ids[size - 1], gates[-1].id)
            return Batch(id, [*[new()] * size, *after], (gates[-1],), (edge,))
        case "chord":
            gates += [a_gate(), a_gate()]
            edges = (Edge(ids[0], ids[1], gates[-2].id), Edge(ids[1], ids[2], gates[-1].id))
            return Batch(id, [new()] * 4, (gates[-2], gates[-1]), edges)
        case "short chain":
            return Batch(id, [new(), *(new(wait=Wait(ids[place])) for place in range(size))])
        case "chain":
            return Batch(id, [new(), *(new(wait=Wait(ids[place])) for place in range(20))])
        case _:
            return Batch(id, [new(), *[new(wait=Wait(ids[0]))] * 64])


@pytest.mark.parametrize("seed", range(6))
async def test_the_short_part_leaves_the_keys_of_the_general_ones(
    store: RedisStore, general: RedisStore, server: RedisServer, seed: int
):
    chance, linked = random.Random(seed), seed % 2 == 0
    both = (store, general)
    leases: list[tuple[Lease, Lease]] = []
    ended: list[tuple[Lease, Lease]] = []
    gates: list[NewGate] = []
    for step in range(200):
        act = chance.choice(["put", "put", "link", "claim", "claim", "claim", "settle", "settle", "settle", "again"])
        if act == "put":
            job = new(
                tenant=chance.choice(["", "", "acme"]),
                limits=("stripe",) if chance.random() < 0.1 else (),
                options=chance.choice([None, b"\x80"]),
            )
            jobs = Batch(new_batch(), [job] * chance.choice([1, 1, 1, 3]))
            for each in both:
                await each.enqueue(jobs)
        elif act == "link" and linked:
            jobs = some_links(chance, gates)
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
            how = chance.choice(
                [DONE, DONE, DONE, RELEASE, Finish(JobState.DONE, result=b"\x01"), Finish(JobState.DEAD)]
            )
            for each, lease in zip(both, pair, strict=True):
                assert not await each.settle(lease.token, [(place, how) for place in range(len(lease.jobs))])
            ended.append(pair)
        elif act == "again" and ended:
            pair = chance.choice(ended)
            refused = [await each.settle(lease.token, [(0, DONE)]) for each, lease in zip(both, pair, strict=True)]
            assert refused[0] == refused[1]
        if step % 10 == 9:
            assert content(server, "hr") == content(server, "gs")
