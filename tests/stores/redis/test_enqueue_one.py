"""One plain job on one server is stored by a script of its own: with few commands, and with the keys of the general script."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from conformance.kit import RELEASE, WORKER, batch, claim, counts, new, put
from headrace.model.job import Batch, NewJob, job_id
from headrace.model.lease import Lease, new_token
from headrace.model.outcome import DONE
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer

OURS = "EVALSHA AUTH CONFIG INFO TIME PING HELLO CLIENT".lower().split()


@pytest.fixture
async def general(server: RedisServer, clock: FakeClock, store: RedisStore) -> AsyncIterator[RedisStore]:
    """A store beside `store` on the same server that never uses the short script."""

    def never(batch: Batch) -> NewJob | None:
        return None

    general = RedisStore(server.url(prefix="general"), clock=clock)
    general.enqueuing._plain = never
    await general.open()
    yield general
    await general.close()


def commands(server: RedisServer) -> dict[str, int]:
    """How often scripts have called each command."""
    lines = [line for line in server.command("INFO", "commandstats").splitlines() if line.startswith("cmdstat_")]
    calls = {
        line[8:].partition(":")[0]: int(line.partition("calls=")[2].partition(",")[0])
        for line in lines
        if "|" not in line
    }
    return {name: count for name, count in calls.items() if name not in OURS}


async def test_one_plain_job_costs_seven_commands(real_store: RedisStore, server: RedisServer):
    await put(real_store)
    blocking = real_store.blocking()
    assert blocking is not None
    blocking.enqueue(batch(new()))
    server.command("CONFIG", "RESETSTAT")
    blocking.enqueue(batch(new()))
    assert sum(commands(server).values()) == 7
    server.command("CONFIG", "RESETSTAT")
    await put(real_store)
    assert sum(commands(server).values()) == 7
    blocking.close()


def content(server: RedisServer, prefix: str) -> dict[str, Any]:
    """Everything under a prefix, by the names of its keys without the prefix."""
    client: Any = Redis.from_url(server.url())
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    with client:
        keys: list[bytes] = client.keys(f"{prefix}:*")
        names = {key: key.decode(errors="backslashreplace").removeprefix(prefix) for key in keys}
        told = {name: read[client.type(key)](key) for key, name in names.items()}
    own, ours = prefix.encode() + b":{", b"hr:{"
    return {name: _without(value, own, ours) for name, value in told.items() if name != ":workers"}


def _without(value: Any, own: bytes, ours: bytes) -> Any:
    """A value in which names of keys begin alike."""
    if isinstance(value, bytes):
        return value.replace(own, ours)
    if isinstance(value, dict):
        return {_without(name, own, ours): _without(each, own, ours) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without(each, own, ours) for each in value]
    return {_without(each, own, ours) for each in value} if isinstance(value, set) else value


@pytest.mark.parametrize("seed", range(4))
async def test_the_short_script_leaves_the_keys_of_the_general_one(
    store: RedisStore, general: RedisStore, server: RedisServer, seed: int
):
    chance = random.Random(seed)
    both = (store, general)
    leases: list[tuple[Lease, Lease]] = []
    stored: list[Batch] = []
    for step in range(120):
        act = chance.choice(["put", "put", "put", "again", "claim", "claim", "settle"])
        if act == "put":
            limits = ("stripe",) if chance.random() < 0.1 else ()
            job = new(
                priority=chance.choice([0, 0, 5, -3]),
                tenant=chance.choice(["", "", "acme", "*"]),
                limits=limits,
                options=chance.choice([None, b"\x80"]),
            )
            stored.append(batch(job))
            for each in both:
                assert not (await each.enqueue(stored[-1])).existing
        elif act == "again" and stored:
            again = chance.choice(stored)
            for each in both:
                await each.enqueue(again)
        elif act == "claim":
            token, limit = new_token(), chance.randint(1, 4)
            short, long = [await claim(each, limit, worker=WORKER, token=token) for each in both]
            assert (short and short.jobs) == (long and long.jobs)
            if short is not None and long is not None:
                leases.append((short, long))
        elif act == "settle" and leases:
            pair = leases.pop(chance.randrange(len(leases)))
            ends = [(place, chance.choice([DONE, RELEASE])) for place in range(len(pair[0].jobs))]
            for each, lease in zip(both, pair, strict=True):
                await each.settle(lease.token, ends)
        if step % 20 == 19:
            assert content(server, "hr") == content(server, "general")


async def test_a_queue_without_counters_is_listed_again(real_store: RedisStore, server: RedisServer):
    await put(real_store)
    blocking = real_store.blocking()
    assert blocking is not None
    server.command("FLUSHDB")  # as an operator does by hand
    made = batch(new())
    blocking.enqueue(made)
    assert await real_store.get([job_id(made.id, 0)]) != [None]
    assert await counts(real_store) == {"ready": 1}
    blocking.close()
