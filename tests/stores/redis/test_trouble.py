"""Servers in trouble: full, busy, read-only, without disk, without scripts, killed. A clear word, or a short wait; never a lost job."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest

from conformance.kit import (
    RELEASE,
    SUSPECT,
    TTL,
    batch,
    claim,
    counts,
    dump,
    new,
    put,
    queue_stats,
    settle_all,
    states,
    take,
)
from conformance.test_workers import presence
from headrace.errors import OutcomeUnknown, StoreError, StoreFull, Unavailable
from headrace.model.job import JobId, JobState, job_id
from headrace.model.outcome import DONE, Finish
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.client.url import parse
from headrace.store.redis.client.wire import Wire
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import asked_until_answered, eventually


@asynccontextmanager
async def opened(server: RedisServer, clock: FakeClock | None = None) -> AsyncGenerator[RedisStore]:
    store = RedisStore(server.url(), clock=clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# ── full ─────────────────────────────────────────────────────────────────────


async def test_a_full_server_takes_no_more_jobs_and_lets_those_it_has_be_done(
    own_server: RedisServer, clock: FakeClock
):
    async with opened(own_server, clock) as store:
        made = await put(store, 20, payload=b"x" * 1000)
        own_server.command("CONFIG", "SET", "maxmemory", "1000000")
        before = await dump(store)
        for refused in (batch(new(payload=b"y" * 1000)), batch(*[new() for _ in range(50)])):
            with pytest.raises(StoreFull, match="maxmemory"):
                await store.enqueue(refused)
        assert await dump(store) == before
        lease = await take(store, 10)
        assert (await store.heartbeat([lease.token], TTL, presence())).lost == frozenset()
        assert (await store.heartbeat([], TTL, presence(name="idle"))).lost == frozenset()
        assert {one.name for one in await store.workers()} == {"host:42", "idle"}
        ends = [DONE, Finish(JobState.DONE, result=b"r" * 500), RELEASE, SUSPECT, Finish(JobState.DEAD, note="n")]
        assert await store.settle(lease.token, [(at, ends[at % 5]) for at in range(10)]) == frozenset()
        while again := await claim(store):
            await settle_all(store, again)
        own_server.command("CONFIG", "SET", "maxmemory", "0")
        assert await counts(store) == {"dead": 2}
        assert set(await states(store, made)) == {JobState.DONE, JobState.DEAD}
        await put(store, 1)


# ── busy, loading, without its scripts ───────────────────────────────────────


async def test_a_long_script_of_somebody_else_is_waited_out(own_server: RedisServer):
    own_server.command("CONFIG", "SET", "busy-reply-threshold", "20")
    async with opened(own_server) as store:
        await put(store, 1)
        spin = threading.Thread(target=_spin, args=(own_server, 400))
        spin.start()
        assert len((await take(store)).jobs) == 1
        spin.join()


async def test_a_script_that_never_ends_is_named(own_server: RedisServer):
    own_server.command("CONFIG", "SET", "busy-reply-threshold", "20")
    async with opened(own_server) as store:
        await put(store, 1)
        spin = threading.Thread(target=_spin, args=(own_server, 60_000))
        spin.start()
        await eventually(lambda: _busy(own_server))
        with pytest.raises(Unavailable, match="SCRIPT KILL"):
            await put(store, 1)
        own_server.command("SCRIPT", "KILL")
        spin.join()
        assert (await counts(store))["ready"] >= 1


async def test_a_refusal_does_not_deny_what_was_sent_before(own_server: RedisServer):
    """The first try runs on, its answer does not come, and the server is too busy for the second one."""
    own_server.command("CONFIG", "SET", "busy-reply-threshold", "20")
    wire = Wire(parse(f"{own_server.url()}?timeout=1"))
    source = b"while true do end"
    endless = Script("spin", source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
    try:
        with pytest.raises(OutcomeUnknown, match="after the command was sent"):
            await wire.run(endless, ["k"])
    finally:
        own_server.command("SCRIPT", "KILL")
        await wire.close()


def _spin(server: RedisServer, milliseconds: int) -> None:
    """Holds the server; ends by itself, or killed."""
    script = "local t=redis.call('TIME') local e=t[1]*1000+t[2]/1000+ARGV[1] repeat t=redis.call('TIME') until t[1]*1000+t[2]/1000>e"
    with suppress(Unavailable, OSError):  # killed, or its answer is no longer awaited
        server.command("EVAL", script, "0", str(milliseconds))


def _busy(server: RedisServer) -> bool:
    try:
        server.command("PING")
    except Unavailable as error:
        return "BUSY" in str(error)
    return False


async def test_scripts_that_the_server_forgot_are_sent_again(store: RedisStore, server: RedisServer):
    for _ in range(3):
        await put(store, 2)
        server.command("SCRIPT", "FLUSH")
        lease = await take(store)
        server.command("SCRIPT", "FLUSH")
        await settle_all(store, lease)
        server.command("SCRIPT", "FLUSH")
        assert (await store.stats()).queues[0].ready == 0


# ── read-only, without disk ──────────────────────────────────────────────────


async def test_a_replica_says_where_to_go(own_server: RedisServer, server: RedisServer):
    async with opened(own_server) as store:
        await put(store, 1)
        own_server.command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(Unavailable, match="replica"):
            await store.enqueue(batch(new()))
        own_server.command("REPLICAOF", "NO", "ONE")
        await store.enqueue(batch(new()))
        assert await counts(store) == {"ready": 2}


async def test_a_server_that_cannot_save_refuses_and_nothing_is_half_done(clock: FakeClock):
    with RedisServer.start(settings={"appendonly": "no", "save": "3600 1"}) as server:
        async with opened(server, clock) as store:
            await put(store, 3)
            before = await dump(store)
            shutil.rmtree(server.home)
            server.command("BGSAVE")
            await eventually(lambda: "rdb_last_bgsave_status:err" in server.command("INFO", "persistence"))
            with pytest.raises(Unavailable, match="disk"):
                await store.enqueue(batch(new()))
            with pytest.raises(Unavailable, match="disk"):
                await take(store)
            server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            assert await dump(store) == before


# ── killed ───────────────────────────────────────────────────────────────────


@pytest.mark.timeout(600)  # on the slowest machine
@pytest.mark.parametrize(("fsync", "budget"), [("always", None), ("everysec", 2.0)])
async def test_twenty_kills_lose_nothing_acknowledged_beyond_the_stated_budget(fsync: str, budget: float | None):
    """With `always` nothing. With `everysec` the server holds its log back while the disk is slow to sync: up to 2 s."""
    acknowledged: dict[JobId, float] = {}
    done: dict[JobId, float] = {}
    kills: list[tuple[float, float]] = []
    stop, more = asyncio.Event(), asyncio.Event()

    async def produce(store: RedisStore) -> None:
        while not stop.is_set():
            made = batch(*[new(tenant=f"t{n}") for n in range(5)])
            await asked_until_answered(store.enqueue, made)
            acknowledged.update(dict.fromkeys([job_id(made.id, ord) for ord in range(5)], monotonic()))
            await asyncio.sleep(0.002)

    async def work(store: RedisStore) -> None:
        while not stop.is_set():
            try:
                lease = await claim(store, 20)
                if lease is None:
                    await store.wait(["default"], 0.05)
                    continue
                refused = await store.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))])
                settled = [job.id for at, job in enumerate(lease.jobs) if at not in refused]
                done.update(dict.fromkeys(settled, monotonic()))
                more.set()
            except StoreError:
                # What this lease held comes back by its expiry.
                await asyncio.sleep(0.01)

    def excused(at: float) -> bool:
        """Acknowledged so shortly before a kill that the setting may lose it."""
        return budget is not None and any(begun - budget <= at <= over for begun, over in kills)

    with RedisServer.start(settings={"appendfsync": fsync}) as server:
        async with opened(server) as producer, opened(server) as worker:
            tasks = [asyncio.ensure_future(produce(producer)), asyncio.ensure_future(work(worker))]
            for task in tasks:
                task.add_done_callback(lambda _: more.set())
            for _ in range(20):
                # Jobs run again after each kill, or the test times out. A failed task is reported at once.
                more.clear()
                await more.wait()
                assert not any(task.done() for task in tasks)
                begun = monotonic()
                await asyncio.to_thread(server.crash)
                kills.append((begun, monotonic()))
                await asyncio.to_thread(server.restart)
            stop.set()
            await asyncio.gather(*tasks)
            kept = dict(zip(acknowledged, await states(worker, list(acknowledged)), strict=True))
            assert [id for id, state in kept.items() if state is None and not excused(acknowledged[id])] == []
            assert [id for id, at in done.items() if kept[id] is not JobState.DONE and not excused(at)] == []
            stored = sum(state is not None for state in kept.values())
            figures = await queue_stats(worker)
            assert figures.enqueued_total == stored
            assert figures.ready + figures.running + figures.done_total == stored
