"""Gates on one server: bounded scripts, ends and signals at the same time, what ordinary jobs cost, what is left."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.kit import LONG, claim, counts, ids, new, put, queue_stats, settle_all, state, take
from conformance.test_gates import a_gate, promote_all
from headrace.model.gate import Counts, Edge, Needs, Wait
from headrace.model.job import Batch, JobState, job_id, new_batch
from headrace.model.outcome import DONE, Again
from headrace.model.records import Retention
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer

MANY = 100_000
COMMANDS = 4_000
"""Commands that one script may call, about 5 ms."""


def calls(server: RedisServer, *names: str) -> int:
    """How often these commands were called; all of them if none is named."""
    lines = server.command("INFO", "commandstats").splitlines()
    stats = {line.split(":")[0].removeprefix("cmdstat_"): line for line in lines if line.startswith("cmdstat_")}
    return sum(int(line.split("calls=")[1].split(",")[0]) for name, line in stats.items() if not names or name in names)


async def test_a_gate_lets_many_jobs_go_in_bounded_scripts(store: RedisStore, server: RedisServer):
    """In calls of so few jobs that each of them waits by itself."""
    gate = a_gate(signalled=True)
    wait = Wait(gate.id)
    for _ in range(0, MANY, 50):
        await store.enqueue(Batch(new_batch(), [new(wait=wait)] * 50, (gate,)))
    assert (await queue_stats(store)).blocked == MANY
    server.command("CONFIG", "RESETSTAT")
    assert await store.signal(gate, b"", LONG)
    scripts = calls(server, "evalsha")
    assert calls(server) / scripts < COMMANDS
    waiting = (await queue_stats(store)).blocked
    assert MANY - 1000 < waiting < MANY
    while True:
        server.command("CONFIG", "RESETSTAT")
        if not (await store.promote()).moved:
            break
        assert calls(server) / calls(server, "evalsha") < COMMANDS
    assert await counts(store) == {"ready": MANY}
    assert (await queue_stats(store)).blocked == 0


async def test_where_the_jobs_of_a_call_count_is_written_once(store: RedisStore, server: RedisServer):
    id, gate = new_batch(), a_gate()
    edges = tuple(Edge(job_id(id, ord), job_id(id, ord), gate.id) for ord in range(0, 1000, 2))
    server.command("CONFIG", "RESETSTAT")
    await store.enqueue(Batch(id, [new()] * 1000, (gate,), edges))
    assert calls(server, "hset") < 20
    [stored] = await store.gates([gate.id])
    assert stored is not None
    assert stored.counts.size == 500


async def test_a_gate_opens_a_lane_of_many_jobs_in_one_script(store: RedisStore, server: RedisServer):
    gate = a_gate(signalled=True)
    run = [new(wait=Wait(gate.id))] * 1000
    for _ in range(0, MANY, len(run)):
        await store.enqueue(Batch(new_batch(), run, (gate,)))
    assert await counts(store) == {"blocked": MANY}
    assert server.command("HLEN", "hr:{default}:U").strip() == "0"
    server.command("CONFIG", "RESETSTAT")
    assert await store.signal(gate, b"", LONG)
    assert calls(server) < 60
    assert await counts(store) == {"ready": MANY}
    assert not (await store.promote()).moved


async def test_jobs_of_opened_lanes_are_claimed_by_as_many_commands_as_others(store: RedisStore, server: RedisServer):
    gate, commands = a_gate(signalled=True), []
    await store.enqueue(Batch(new_batch(), [new(queue="waits", wait=Wait(gate.id))] * 1000, (gate,)))
    await put(store, 1000)
    assert await store.signal(gate, b"", LONG)
    for queue in ("default", "waits"):
        await settle_all(store, await take(store, 100, queue))
        server.command("CONFIG", "RESETSTAT")
        for _ in range(5):
            await settle_all(store, await take(store, 100, queue))
        commands.append(calls(server))
    assert abs(commands[1] - commands[0]) <= 5


async def test_a_gate_opens_many_lanes_in_bounded_scripts(
    store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.store.redis.plans._LARGE", 1)
    gate = a_gate(signalled=True)
    lanes = [new(tenant=f"t{n % 600}", limits=("api",) if n % 2 else (), wait=Wait(gate.id)) for n in range(900)]
    await store.enqueue(Batch(new_batch(), lanes, (gate,)))
    server.command("CONFIG", "RESETSTAT")
    assert await store.signal(gate, b"", LONG)
    while True:
        assert calls(server) / calls(server, "evalsha") < COMMANDS
        server.command("CONFIG", "RESETSTAT")
        if not (await store.promote()).moved:
            break
    assert await counts(store) == {"ready": 900}


async def test_jobs_that_wait_for_an_open_gate_are_stored_as_ready_ones(store: RedisStore, server: RedisServer):
    gate = a_gate(signalled=True)
    await store.signal(gate, b"", LONG)
    [ended] = await put(store)
    await settle_all(store, await take(store))
    for target in (gate.id, ended):
        await store.enqueue(Batch(new_batch(), [new(wait=Wait(target))] * 3))
    assert await counts(store) == {"ready": 6}
    assert server.command("EXISTS", "hr:{default}:E", "hr:{default}:N").strip() == "0"


async def test_a_lane_that_is_cancelled_is_cancelled_in_bounded_scripts(store: RedisStore, server: RedisServer):
    gate = a_gate(sealed=False)
    edges = [await put(store, queue="members")]
    await store.enqueue(Batch(new_batch(), [], (gate,), (Edge(edges[0][0], edges[0][0], gate.id),)))
    for _ in range(5):
        await store.enqueue(Batch(new_batch(), [new(wait=Wait(gate.id))] * 1000))
    server.command("CONFIG", "RESETSTAT")
    await store.cancel(edges[0])
    assert calls(server) / calls(server, "evalsha") < COMMANDS
    left = (await queue_stats(store)).blocked
    assert 4000 < left < 5000
    # A further run of the same wait is no part of the lane that is being cancelled.
    await store.enqueue(Batch(new_batch(), [new(wait=Wait(gate.id))] * 1000))
    while True:
        server.command("CONFIG", "RESETSTAT")
        if not (await store.promote()).moved:
            break
        assert calls(server) / calls(server, "evalsha") < COMMANDS
    assert await counts(store) == {}


async def test_a_cascade_of_cancellations_is_bounded_and_ends(store: RedisStore, server: RedisServer):
    """A tree: each of a thousand jobs is awaited by ten."""
    root, middle = new_batch(), new_batch()
    await store.enqueue(Batch(root, [new()]))
    first = job_id(root, 0)
    await store.enqueue(Batch(middle, [new(wait=Wait(first))] * 1000))
    for at in range(0, 1000, 100):
        waits = [new(wait=Wait(job_id(middle, ord))) for ord in range(at, at + 100) for _ in range(10)]
        await store.enqueue(Batch(new_batch(), waits))
    server.command("CONFIG", "RESETSTAT")
    await store.cancel([first])
    assert calls(server) / calls(server, "evalsha") < COMMANDS
    assert (await queue_stats(store)).blocked > 0
    await promote_all(store)
    assert await counts(store) == {}
    assert (await queue_stats(store)).blocked == 0


async def test_the_last_two_members_are_settled_at_the_same_time(store: RedisStore, server: RedisServer):
    other = RedisStore(server.url(), clock=store.time.clock)
    await other.open()
    for _ in range(200):
        id, gate = new_batch(), a_gate()
        edge = Edge(job_id(id, 0), job_id(id, 1), gate.id)
        await store.enqueue(Batch(id, [new(), new(), new(queue="then", wait=Wait(gate.id))], (gate,), (edge,)))
        one, two = await take(store, 1), await take(other, 1)
        await asyncio.gather(store.settle(one.token, [(0, DONE)]), other.settle(two.token, [(0, DONE)]))
        [after] = ids(await claim(store, 10, "then"))
        assert after == job_id(id, 2)
        [found] = await store.gates([gate.id])
        assert found is not None
        assert found.counts == Counts(2, done=2)
    await other.close()


async def test_a_suspension_and_its_signal_at_the_same_time(store: RedisStore, server: RedisServer):
    other = RedisStore(server.url(), clock=store.time.clock)
    await other.open()
    for _ in range(200):
        [id] = await put(store)
        lease, gate = await take(store), a_gate(signalled=True)
        again = Again(0, 0, gates=(gate,), waits=(Wait(gate.id),))
        await asyncio.gather(store.settle(lease.token, [(0, again)]), other.signal(gate, b"", LONG))
        await promote_all(store)
        assert await state(store, id) is JobState.READY
        await settle_all(store, await take(store))
    await other.close()


async def test_a_settle_of_ordinary_jobs_calls_no_further_command(store: RedisStore, server: RedisServer):
    """Beside gates in other queues, and with none at all."""
    counted: list[int] = []
    await put(store, 10)
    await settle_all(store, await take(store))  # loads the script
    for _ in range(2):
        await put(store, 10)
        lease = await take(store)
        server.command("CONFIG", "RESETSTAT")
        await settle_all(store, lease)
        counted.append(calls(server))
        gate = a_gate()
        await store.enqueue(Batch(new_batch(), [new(queue="linked", wait=Wait(gate.id, Needs.FAILED))], (gate,)))
    assert counted[0] == counted[1]


async def test_nothing_is_left_of_gates_and_links(store: RedisStore, server: RedisServer, clock: FakeClock):
    id, gate, outer = new_batch(), a_gate(label="g", tenant="t"), a_gate()
    edges = (Edge(job_id(id, 0), job_id(id, 1), gate.id), Edge(gate.id, gate.id, outer.id))
    jobs = [new(), new(), new(wait=Wait(gate.id)), new(wait=Wait(outer.id)), new(wait=Wait(job_id(id, 0)))]
    jobs += [new(wait=Wait(gate.id), tenant="t", limits=("api",))] * 100
    jobs += [new(wait=Wait(outer.id, Needs.FAILED))] * 100
    await store.enqueue(Batch(id, jobs, (gate, outer), edges))
    await store.delete([job_id(id, 50)])
    while (lease := await claim(store)) is not None:
        await settle_all(store, lease)
        await promote_all(store)
    event = a_gate(signalled=True)
    await store.signal(event, b"x", timedelta(hours=1))
    for _ in range(3):
        clock.advance(timedelta(days=8))
        while (await store.prune(Retention())).more:
            pass
    left = {key for key in server.command("KEYS", "*").splitlines() if ":#" in key}
    assert {key.split("}:")[1] for key in left} <= {"#s"}
    assert server.command("KEYS", "hr:{default}:*").split() == []
    assert await counts(store) == {}
