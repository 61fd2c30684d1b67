"""What lies beside the jobs goes with them, however much there is: locks, buckets, presences, results past their time."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    LONG,
    SECOND,
    TTL,
    claim,
    find_all,
    look,
    new,
    put,
    put_jobs,
    rule,
    settle_all,
    take,
)
from conformance.test_workers import presence
from headrace.model.job import JobState, UniqueLock
from headrace.model.outcome import DONE, Finish
from headrace.model.records import Retention
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import put_many

AT_ONCE = Retention(done=timedelta(0), dead=timedelta(0))
MANY = 1500
HELD = frozenset({JobState.READY, JobState.RUNNING})


async def drained(store: RedisStore) -> None:
    while lease := await claim(store, 500):
        await settle_all(store, lease)


async def pruned(store: RedisStore) -> None:
    while (await store.prune(AT_ONCE)).more:
        pass


def size(server: RedisServer, key: str) -> int:
    return int(server.command("HLEN", key))


async def test_locks(store: RedisStore, server: RedisServer):
    locks = [UniqueLock(f"order-{n}", HELD, None, replace=False) for n in range(MANY)]
    await put_many(store, [new(unique=lock) for lock in locks])
    await drained(store)
    assert size(server, "hr:{#limits}:#l") == MANY
    await pruned(store)
    assert size(server, "hr:{#limits}:#l") == 0
    [held] = await put_jobs(store, new(unique=locks[0]))
    await store.prune(AT_ONCE)
    assert (await look(store, held)).state is JobState.READY
    assert size(server, "hr:{#limits}:#l") == 1


async def test_buckets(store: RedisStore, server: RedisServer, clock: FakeClock):
    await rule(store, "shop", rate=1.0, burst=1.0)
    await put_many(store, [new(tenant=f"t{n}", limits=(f"shop:{n}",)) for n in range(MANY)])
    await drained(store)
    await store.prune(AT_ONCE)
    assert size(server, "hr:{#limits}:#b") == MANY
    clock.advance(2)
    await store.prune(AT_ONCE)
    assert size(server, "hr:{#limits}:#b") == 0


async def test_pauses_that_are_over(store: RedisStore, server: RedisServer, clock: FakeClock):
    for n in range(300):
        await store.pause(f"t{n}", kind="tenant", until=clock.now() + SECOND)
        await store.pause(f"a{n}", kind="task", until=clock.now() + SECOND * (1 + n % 2 * 100))
    clock.advance(2)
    await store.prune(AT_ONCE)
    assert size(server, "hr:{#limits}:#t") == 0
    assert size(server, "hr:{#limits}:#a") == 150


async def test_there_may_be_more_than_one_call_looks_at(store: RedisStore, server: RedisServer, monkeypatch):
    monkeypatch.setattr("headrace.store.redis.verbs.upkeep._TIDY_STEPS", 3)
    await put_many(store, [new(unique=UniqueLock(f"{n}", HELD, None, replace=False)) for n in range(MANY)])
    await drained(store)
    await pruned(store)
    left = size(server, "hr:{#limits}:#l")
    assert 0 < left < MANY
    for _ in range(MANY):
        await store.prune(AT_ONCE)
        if not (left := size(server, "hr:{#limits}:#l")):
            break
    assert left == 0


async def test_workers_that_were_killed(store: RedisStore, server: RedisServer, clock: FakeClock):
    for _ in range(5):
        await store.heartbeat([], TTL, presence())
    clock.advance(LONG)
    await store.heartbeat([], TTL, presence(name="alive"))
    await store.prune(AT_ONCE)
    assert size(server, "hr:workers") == 6
    clock.advance(SECOND)
    await store.prune(AT_ONCE)
    assert size(server, "hr:workers") == 1
    assert [one.name for one in await store.workers()] == ["alive"]


async def test_results_past_their_time_though_their_jobs_are_kept(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    made = await put(store, 20)
    lease = await take(store, 20)
    short = Finish(JobState.DONE, result=b"r" * 10_000, result_ttl=SECOND)
    longer = Finish(JobState.DONE, result=b"r" * 10_000, result_ttl=SECOND * 5)
    await store.settle(lease.token, [(at, short) for at in range(10)])
    await store.settle(lease.token, [(at, longer) for at in range(10, 20)])
    keep = Retention(done=LONG, dead=LONG)
    clock.advance(2)
    await store.prune(keep)
    assert (await look(store, made[19])).result == b"r" * 10_000
    # Each goes when its own time is over, not when that of the last one in its lease is.
    assert int(server.command("MEMORY", "USAGE", "hr:{default}:g:1", "SAMPLES", "0")) < 150_000
    clock.advance(5)
    await store.prune(keep)
    assert (await look(store, made[0])).result_expired
    assert (await look(store, made[19])).result_expired
    assert int(server.command("MEMORY", "USAGE", "hr:{default}:g:1", "SAMPLES", "0")) < 10_000
    clock.advance(LONG)
    await store.prune(keep)
    assert not [
        key for key in server.command("KEYS", "hr:{default}:*").split("\n") if not key.endswith((":d", ":y", ":y2"))
    ]


async def test_results_of_small_leases_go_too(store: RedisStore, server: RedisServer, clock: FakeClock):
    for number in range(3):
        await put(store)
        ttl = None if number == 2 else SECOND
        await settle_all(store, await take(store), Finish(JobState.DONE, result=b"r" * 10_000, result_ttl=ttl))
    await put(store)
    await settle_all(store, await take(store), DONE)
    assert server.command("ZCARD", "hr:{default}:gk") == "2"  # the others cost nothing
    clock.advance(2)
    await store.prune(Retention(done=LONG, dead=LONG))
    assert 10_000 < int(server.command("MEMORY", "USAGE", "hr:{default}:k", "SAMPLES", "0")) < 15_000
    assert server.command("EXISTS", "hr:{default}:gk") == "0"
    assert [job.result_expired for job in await find_all(store)] == [False, False, True, True]


async def test_results_that_never_end_stay_with_the_others_of_their_lease(store: RedisStore, clock: FakeClock):
    made = await put(store, 10)
    lease = await take(store, 10)
    await store.settle(lease.token, [(0, Finish(JobState.DONE, result=b"r")), *[(at, DONE) for at in range(1, 5)]])
    await store.settle(
        lease.token, [(at, Finish(JobState.DONE, result=b"s", result_ttl=SECOND)) for at in range(5, 10)]
    )
    clock.advance(10)
    await store.prune(Retention(done=LONG, dead=LONG))
    assert (await look(store, made[0])).result == b"r"
    assert (await look(store, made[9])).result_expired
