"""A signal for which one suspended job waits is taken by the first part of the script: with few commands, and with the keys of the rest."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import LONG, WORKER, batch, claim, new, put, take
from conformance.test_gates import a_gate
from headrace.model.gate import Edge, Gate, Needs, NewGate, Wait
from headrace.model.job import Batch, new_batch
from headrace.model.lease import Lease, new_token
from headrace.model.outcome import DONE, Again
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import take_general_scripts
from stores.redis.test_enqueue_one import commands, content


@pytest.fixture
async def general(server: RedisServer, clock: FakeClock, store: RedisStore) -> AsyncIterator[RedisStore]:
    """A store beside `store` on the same server. Blocked jobs have its prefix inside, so it is as long as the other one."""
    general = RedisStore(server.url(prefix="gs"), clock=clock)
    take_general_scripts(general)
    await general.open()
    yield general
    await general.close()


def all_but_calls(server: RedisServer, prefix: str) -> dict[str, Any]:
    """Everything but the random text by which a gate knows the call that signalled it."""
    told = content(server, prefix)
    for name, value in told.items():
        if "#g:" in name:
            value.pop(b"x", None)
    return told


async def suspend(store: RedisStore, gate: NewGate) -> None:
    lease = await take(store)
    assert not await store.settle(lease.token, [(0, Again(0, 0, gates=(gate,), waits=(Wait(gate.id),)))])


async def test_a_signal_and_the_claim_that_follows_call_few_commands(real_store: RedisStore, server: RedisServer):
    for _ in range(2):
        await put(real_store)
        gate = a_gate(signalled=True)
        await suspend(real_store, gate)
        server.command("CONFIG", "RESETSTAT")
        assert await real_store.signal(gate, b"value", LONG)
        assert sum(commands(server).values()) == 19
        server.command("CONFIG", "RESETSTAT")
        lease = await take(real_store)
        assert sum(commands(server).values()) == 18
        await real_store.settle(lease.token, [(0, DONE)])


@pytest.mark.parametrize("seed", range(6))
async def test_the_short_part_leaves_the_keys_of_the_general_ones(
    store: RedisStore, general: RedisStore, server: RedisServer, clock: FakeClock, seed: int
):
    chance = random.Random(seed)
    both = (store, general)
    leases: list[tuple[Lease, Lease]] = []
    gates: list[NewGate] = []
    odd = seed % 2 == 0

    def some_wait() -> Wait:
        return Wait(chance.choice(gates).id, chance.choice([Needs.DONE, Needs.DONE, Needs.ENDED, Needs.FAILED]))

    for step in range(160):
        act = chance.choice(
            ["put", "put", "claim", "claim", "suspend", "suspend", "suspend", "signal", "signal", "settle", "later"]
        )
        if act == "put":
            wait = some_wait() if odd and gates and chance.random() < 0.2 else None
            job = new(
                priority=chance.choice([0, 0, 5]),
                tenant=chance.choice(["", "", "acme"]) if odd else "",
                limits=("stripe",) if odd and chance.random() < 0.1 else (),
                due=timedelta(seconds=1) if odd and chance.random() < 0.2 else None,
                wait=wait,
            )
            jobs = batch(job) if chance.random() < 0.9 else batch(job, job)
            for each in both:
                await each.enqueue(jobs)
        elif act == "claim":
            token = new_token()
            short, long = [await claim(each, 1, worker=WORKER, token=token) for each in both]
            assert (short and short.jobs) == (long and long.jobs)
            if short is not None and long is not None:
                leases.append((short, long))
        elif act == "suspend" and leases:
            gates.append(a_gate(signalled=True))
            waits = [Wait(gates[-1].id), *([some_wait()] if chance.random() < 0.2 else [])]
            due = timedelta(seconds=3) if chance.random() < 0.3 else None
            pair = leases.pop()
            for each, lease in zip(both, pair, strict=True):
                await each.settle(lease.token, [(0, Again(0, 0, due, gates=(gates[-1],), waits=tuple(waits)))])
        elif act == "signal" and gates:
            gate = chance.choice(gates[-8:])
            said = [await each.signal(gate, b"value", LONG) for each in both]
            assert said[0] == said[1]
        elif act == "settle" and leases:
            pair = leases.pop(chance.randrange(len(leases)))
            for each, lease in zip(both, pair, strict=True):
                assert not await each.settle(lease.token, [(0, DONE)])
        elif act == "later":
            clock.advance(timedelta(seconds=1))
            for each in both:
                await each.promote()
        if step % 10 == 9:
            assert all_but_calls(server, "hr") == all_but_calls(server, "gs")


async def test_a_gate_that_is_a_member_of_another_one_is_counted_there(store: RedisStore):
    await put(store)
    gate, outer = a_gate(signalled=True), a_gate()
    await suspend(store, gate)
    await store.enqueue(Batch(new_batch(), [], (outer,), (Edge(gate.id, gate.id, outer.id),)))
    assert await store.signal(gate, b"value", LONG)
    found: Gate | None
    [found] = await store.gates([outer.id])
    assert found is not None
    assert found.counts.done == 1
    assert len((await take(store)).jobs) == 1
