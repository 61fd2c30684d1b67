"""Waiting: idle workers wait on the server, one job wakes one of them, and no worker wakes without a job."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import RELEASE, TTL, WORKER, claim, new, put, put_jobs, settle_all, take
from headrace.errors import Unavailable
from headrace.model.lease import Ask, Band, new_token
from headrace.model.records import LimitRule
from headrace.store.redis.store import RedisStore
from headrace.store.redis.verbs import wait as wait_verb
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.kit import eventually

QUEUE = ["default"]
LONG = 60.0
SHORT = 0.05


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is: a hint counts as followed by the claim that a test makes next."""
    monkeypatch.setattr(wait_verb, "_USE_WITHIN", 3600.0)


async def sleepers(server: RedisServer, count: int) -> None:
    """Until so many clients are asleep on the server."""
    await eventually(lambda: f"blocked_clients:{count}\r\n" in server.command("INFO", "clients"))


async def test_one_job_wakes_one_of_many(real_store: RedisStore, server: RedisServer):
    waits = [asyncio.ensure_future(real_store.wait(QUEUE, LONG)) for _ in range(30)]
    await sleepers(server, 1)
    await put(real_store, 1)
    done, asleep = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [True]
    await sleepers(server, 1)
    # A claim of the last job wakes no worker. A claim that leaves jobs wakes the next one.
    assert len((await take(real_store)).jobs) == 1
    await put(real_store, 3)
    done, asleep = await asyncio.wait(asleep, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    await take(real_store, 1)
    done, asleep = await asyncio.wait(asleep, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    await take(real_store, 5)
    assert len(asleep) == 27
    for task in asleep:
        task.cancel()
    await asyncio.gather(*asleep, return_exceptions=True)
    await sleepers(server, 0)


async def test_a_hint_given_while_nobody_waits_is_kept(real_store: RedisStore):
    await put(real_store, 1)
    assert await real_store.wait(QUEUE, LONG)


async def test_nothing_to_claim_nothing_to_wake_for(real_store: RedisStore):
    await put(real_store, 2)
    lease = await take(real_store)
    assert not await real_store.wait(QUEUE, SHORT)
    await settle_all(real_store, lease)
    assert await claim(real_store) is None
    assert not await real_store.wait(QUEUE, SHORT)


async def test_every_way_to_become_ready_wakes(store: RedisStore, server: RedisServer, clock: FakeClock):
    [late] = await put_jobs(store, new(due=timedelta(seconds=5)))
    wait = asyncio.ensure_future(store.wait(QUEUE, LONG))
    await sleepers(server, 1)
    clock.advance(5)
    await store.promote()
    assert await wait
    lease = await take(store)
    wait = asyncio.ensure_future(store.wait(QUEUE, LONG))
    await sleepers(server, 1)
    await settle_all(store, lease, RELEASE)
    assert await wait
    await settle_all(store, await take(store))
    wait = asyncio.ensure_future(store.wait(QUEUE, LONG))
    await sleepers(server, 1)
    await store.retry([late])
    assert await wait


async def test_a_lost_hint_is_repeated_where_there_is_something_to_claim(store: RedisStore, clock: FakeClock):
    lost = [store.client.keys.marker(queue) for queue in ("a", "b")]
    await put(store, 1, queue="a")
    await put(store, 1, queue="b")
    await store.pause("b", until=clock.now() + timedelta(seconds=5))
    await store.client.wire.command(lost[0], "DEL", *lost)
    assert not await store.wait(["a"], SHORT)
    await store.repeat_hints(["a", "b", "empty"])
    assert await store.wait(["a"], LONG)
    assert not await store.wait(["b", "empty"], SHORT)
    clock.advance(5)
    await store.repeat_hints(["a", "b", "empty"])
    assert await store.wait(["b"], LONG)
    # One marker is enough.
    await store.repeat_hints(["a"])
    assert await store.wait(["a"], LONG)
    assert not await store.wait(["a", "empty"], SHORT)


async def test_a_lost_hint_about_a_limit_that_has_opened_is_repeated(store: RedisStore, clock: FakeClock):
    await store.limit("rate", LimitRule(rate=1.0), None)
    await put_jobs(store, new(limits=("rate",)), new(limits=("rate",)))
    assert len((await take(store)).jobs) == 1
    marker = store.client.keys.marker("default")
    await store.client.wire.command(marker, "DEL", marker)
    # The lane is parked until a unit is there again.
    await store.repeat_hints(QUEUE)
    assert not await store.client.wire.command(marker, "EXISTS", marker)
    clock.advance(1)
    await store.repeat_hints(QUEUE)
    assert await store.client.wire.command(marker, "EXISTS", marker)


async def test_any_of_several_queues_wakes(real_store: RedisStore, server: RedisServer):
    wait = asyncio.ensure_future(real_store.wait(["a", "b", "c"], LONG))
    await sleepers(server, 1)
    await put(real_store, 1, queue="c")
    assert await wait


@pytest.mark.parametrize(
    "narrow", [{"tenant": "other"}, {"bands": (Band(5, 9, 10),), "only_bands": True}], ids=["tenant", "bands"]
)
async def test_who_may_not_have_a_job_wakes_the_next(
    real_store: RedisStore, server: RedisServer, narrow: dict[str, Any]
):
    first = asyncio.ensure_future(real_store.wait(QUEUE, LONG))
    await sleepers(server, 1)
    other = RedisStore(server.url())
    second = asyncio.ensure_future(other.wait(QUEUE, LONG))
    await sleepers(server, 2)
    await put(real_store, 1, tenant="acme")
    assert await first
    assert not second.done()
    assert await real_store.claim(Ask(WORKER, ("default",), 10, TTL, new_token(), **narrow)) is None
    assert await second
    assert len((await take(other)).jobs) == 1
    await other.close()


async def test_who_may_not_have_what_waits_does_not_spin(real_store: RedisStore):
    await put(real_store, 1, tenant="acme")
    rounds = 0

    async def look() -> None:
        nonlocal rounds
        assert await real_store.wait(QUEUE, LONG)
        assert await real_store.claim(Ask(WORKER, ("default",), 1, TTL, new_token(), tenant="other")) is None
        rounds += 1

    await look()
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while True:
                await look()
    assert rounds <= 10
    # What comes for it is found, and then there are no pauses.
    await put(real_store, 2, tenant="other")
    assert await real_store.wait(QUEUE, LONG)
    assert await real_store.claim(Ask(WORKER, ("default",), 1, TTL, new_token(), tenant="other")) is not None
    assert not real_store.waiting.pauses


async def test_sleepers_take_no_connection_from_workers(real_store: RedisStore, server: RedisServer):
    waits = [asyncio.ensure_future(real_store.wait([f"idle{n}"], LONG)) for n in range(100)]
    await sleepers(server, 1)
    await put(real_store, 5)
    await settle_all(real_store, await take(real_store))
    # One sleeps for all of them; the others are at work, or have just been.
    assert server.command("CLIENT", "LIST").count("name=headrace") < 10
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def test_each_of_many_waits_is_woken_by_its_own_queue(real_store: RedisStore, server: RedisServer):
    """Those that join, and those that leave, meanwhile."""
    waits = {n: asyncio.ensure_future(real_store.wait([f"q{n}", f"r{n}"], LONG)) for n in range(40)}
    await sleepers(server, 1)
    for n in range(0, 40, 2):
        waits.pop(n).cancel()
    for n in (41, 43):
        waits[n] = asyncio.ensure_future(real_store.wait([f"q{n}"], LONG))
    for n in (39, 1, 43, 7):
        await put(real_store, 1, queue=f"q{n}")
        assert await waits.pop(n)
        assert len((await take(real_store, 5, f"q{n}")).jobs) == 1
    assert not any(wait.done() for wait in waits.values())
    # What came for a wait that has left is there for the next.
    await put(real_store, 1, queue="q0")
    assert await real_store.wait(["q0"], LONG)
    for wait in waits.values():
        wait.cancel()
    await asyncio.gather(*waits.values(), return_exceptions=True)
    await sleepers(server, 0)


async def test_waits_end_each_at_its_own_time(real_store: RedisStore, server: RedisServer):
    long = asyncio.ensure_future(real_store.wait(["a"], LONG))
    await sleepers(server, 1)
    assert not await real_store.wait(["a", "b"], SHORT)
    assert not await real_store.wait(["b"], SHORT)
    assert not long.done()
    await put(real_store, 1, queue="a")
    assert await long


async def test_a_connection_that_breaks_ends_the_waits_on_it(real_store: RedisStore, server: RedisServer):
    waits = [asyncio.ensure_future(real_store.wait([f"q{n}"], LONG)) for n in range(5)]
    await sleepers(server, 1)
    server.command("CLIENT", "KILL", "TYPE", "normal")
    for answer in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(answer, Unavailable)
    await put(real_store, 1, queue="q3")
    assert await real_store.wait(["q3"], LONG)


# ── a hint belongs to the worker that follows it ─────────────────────────────


async def test_a_sleeper_called_off_leaves_the_hint_to_the_next(real_store: RedisStore, server: RedisServer):
    sleeper = asyncio.ensure_future(real_store.wait(QUEUE, LONG))
    await sleepers(server, 1)
    # The server has given it the hint, and the answer is on its way when it is called off.
    server.command("RPUSH", real_store.client.keys.marker("default"), "1")
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert await real_store.wait(QUEUE, LONG)


async def test_a_sleeper_called_off_leaves_nothing_behind(real_store: RedisStore, server: RedisServer):
    for _ in range(20):
        waits = [asyncio.ensure_future(real_store.wait(QUEUE, LONG)) for _ in range(3)]
        await sleepers(server, 1)
        for sleeper in waits:
            sleeper.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await sleepers(server, 0)
    await eventually(lambda: server.command("KEYS", "*:w:*") == "")
    # Their connections are kept, and those that woke them: far fewer than sleeps.
    assert server.command("CLIENT", "LIST").count("name=headrace") < 30


async def test_a_hint_that_nobody_follows_goes_to_the_next(
    real_store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wait_verb, "_USE_WITHIN", 0.01)
    await put(real_store, 1)
    assert await real_store.wait(QUEUE, LONG)
    other = RedisStore(server.url())
    assert await other.wait(QUEUE, LONG)
    assert len((await take(other)).jobs) == 1
    await other.close()


async def test_a_store_that_closes_leaves_its_hint_to_others(real_store: RedisStore, server: RedisServer):
    leaving = RedisStore(server.url())
    await put(real_store, 1)
    assert await leaving.wait(QUEUE, LONG)
    await leaving.close()
    assert await real_store.wait(QUEUE, LONG)
