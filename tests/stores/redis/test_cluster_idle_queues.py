"""Queues without jobs on a cluster: they leave nothing but their totals, and no enqueue is lost whichever process dies at which step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import JANITOR, RELEASE, TTL, claim, find_all, ids, new, put, put_jobs, settle_all, take
from headrace.model.job import JobId
from headrace.model.outcome import DONE
from headrace.model.records import Filter, LimitRule, Retention
from headrace.store.redis.client import scripts
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisCluster

KEEP = Retention(done=timedelta(minutes=1), dead=timedelta(minutes=1))

REMEMBERED = 600_000_000
FROM_THE_START = ("-inf", 0) * 3
Process = Callable[[], Awaitable[RedisStore]]


class Died(Exception):
    """A process ends between two of its calls."""


@pytest.fixture
async def place(cluster: RedisCluster, clock: FakeClock) -> AsyncIterator[Process]:
    """Processes that share a cluster."""
    for node in cluster.nodes:
        node.command("FLUSHALL")
    stores: list[RedisStore] = []

    async def process() -> RedisStore:
        store = RedisStore(cluster.url(), clock=clock)
        stores.append(store)
        await store.open()
        return store

    yield process
    for store in stores:
        await store.close()


@pytest.fixture
async def store(place: Process) -> RedisStore:
    return await place()


@pytest.fixture
async def other(place: Process, store: RedisStore) -> RedisStore:
    """Another process, which has listed the queue and does not hear that it was forgotten."""
    del store
    return await place()


async def run_empty(store: RedisStore, clock: FakeClock) -> None:
    """Until the queue `q` has no jobs, and no token of a lease that was settled is remembered."""
    while lease := await claim(store, 100, "q"):
        await settle_all(store, lease)
    clock.advance(61)
    await store.prune(KEEP)
    for _ in range(2):
        clock.advance(601)
        # What a prune does with the tokens, without the forgetting.
        await store.client.run(scripts.PRUNE, "q", store.time.given, 0, 0, REMEMBERED, *FROM_THE_START)


async def names(store: RedisStore) -> list[str]:
    return await store.queues.names()


def keys_of(cluster: RedisCluster, queue: str) -> str:
    return "".join(node.command("KEYS", f"hr:{{{queue}}}:*") for node in cluster.nodes)


async def totals(store: RedisStore) -> list[tuple[str, int, int]]:
    return [(one.queue, one.enqueued_total, one.done_total) for one in (await store.stats()).queues]


def interrupted(store: RedisStore, at: int, act: Callable[[], Awaitable[object]]) -> list[int]:
    """Do something before the call of this number that the process makes. Answers a list with the calls made."""
    calls: list[int] = []
    wire = store.client.wire
    command_many = wire.command_many

    async def counted(*args: Any, **options: Any) -> Any:
        if len(calls) == at:
            calls.append(0)
            await act()
        else:
            calls.append(0)
        return await command_many(*args, **options)

    wire.command_many = counted  # type: ignore[method-assign]
    return calls


async def die() -> None:
    raise Died


async def takes_jobs(store: RedisStore, wanted: Sequence[JobId], total: int) -> None:
    """It is listed, and the jobs are where every process finds them."""
    assert await names(store) == ["q"]
    assert sorted(job.id for job in await find_all(store, Filter())) == sorted(wanted)
    [(_, enqueued, _)] = await totals(store)
    assert enqueued == total
    assert sorted(ids(await claim(store, 100, "q"))) == sorted(wanted)


# ── forgetting ──────────────────────────────────────────────────────────────


async def test_a_queue_without_jobs_leaves_its_totals_only(
    store: RedisStore, other: RedisStore, cluster: RedisCluster, clock: FakeClock
):
    for round in (1, 2, 3):
        # The process that enqueues has listed the queue, and does not know that another one has forgotten it.
        await put(other, 2, queue="q")
        await run_empty(store, clock)
        before = await totals(store)
        assert before == [("q", 2 * round, 2 * round)]
        assert (await names(store), bool(keys_of(cluster, "q"))) == (["q"], True)
        await store.prune(KEEP)
        assert await names(store) == []
        assert keys_of(cluster, "q") == ""
        assert await totals(store) == before


async def test_places_go_on_where_they_were(store: RedisStore, clock: FakeClock):
    await put(store, 3, queue="q")
    await run_empty(store, clock)
    await store.prune(KEEP)
    made = await put(store, 3, queue="q")
    lease = await take(store, 2, "q")
    more = await put(store, 1, queue="q")
    await settle_all(store, lease, RELEASE)
    assert ids(await claim(store, 100, "q")) == [*made, *more]


@pytest.mark.parametrize("due", [None, timedelta(hours=1)])
async def test_one_with_jobs_is_kept(store: RedisStore, clock: FakeClock, due: timedelta | None):
    await put(store, queue="q")
    await run_empty(store, clock)
    await put(store, queue="q", due=due)
    await store.prune(KEEP)
    assert await names(store) == ["q"]


async def test_a_paused_one_is_kept_and_a_pause_brings_it_back(store: RedisStore, other: RedisStore, clock: FakeClock):
    await put(other, queue="q")
    await run_empty(store, clock)
    await store.pause("q", by="me")
    await store.prune(KEEP)
    assert [pause.name for pause in await store.pauses()] == ["q"]
    await store.resume("q")
    await store.prune(KEEP)
    assert await names(store) == []
    await other.pause("q", by="me")
    assert [pause.name for pause in await store.pauses()] == ["q"]
    assert await totals(store) == [("q", 1, 1)]


async def test_a_rule_that_was_made_meanwhile_holds(store: RedisStore, other: RedisStore, clock: FakeClock):
    await put(other, queue="q")
    await run_empty(store, clock)
    await store.prune(KEEP)
    await store.limit("shop", LimitRule(concurrency=1), None)
    await store.pause("held", kind="tenant")
    made = await put_jobs(
        other, *[new(queue="q", limits=("shop",)) for _ in range(3)], new(queue="q", tenant="held"), new(queue="q")
    )
    assert sorted(ids(await claim(store, 100, "q"))) == sorted([made[0], made[4]])


# ── at every step ───────────────────────────────────────────────────────────


async def emptied(store: RedisStore, other: RedisStore, clock: FakeClock) -> None:
    await put(other, 2, queue="q")
    await run_empty(store, clock)


def leave(store: RedisStore) -> Awaitable[bool]:
    return store.queues.forget("q", store.time.given, REMEMBERED)


@pytest.mark.parametrize("step", range(5))
async def test_an_enqueue_between_two_steps(store: RedisStore, other: RedisStore, clock: FakeClock, step: int):
    await emptied(store, other, clock)
    made: list[JobId] = []

    async def enqueue() -> None:
        made.extend(await put(other, 1, queue="q"))

    interrupted(store, step, enqueue)
    assert await leave(store) is (step == 4)
    assert len(made) == 1
    await takes_jobs(store, made, 3)


@pytest.mark.parametrize("step", range(5))
async def test_a_janitor_that_dies_between_two_steps(
    store: RedisStore, other: RedisStore, place: Process, cluster: RedisCluster, clock: FakeClock, step: int
):
    await emptied(store, other, clock)
    interrupted(store, step, die)
    with pytest.raises(Died):
        await leave(store)
    assert await totals(other) == [("q", 2, 2)]
    made = await put(other, 1, queue="q")
    another = await place()
    await takes_jobs(another, made, 3)
    await run_empty(another, clock)
    clock.advance(61)
    for orphan in await another.reap(JANITOR, TTL):
        assert not await another.settle(orphan.token, [(at, DONE) for at, _ in orphan.jobs])
    await run_empty(another, clock)
    await another.prune(KEEP)
    assert (await names(another), keys_of(cluster, "q")) == ([], "")
    assert (await totals(another))[0][:2] == ("q", 3)


@pytest.mark.parametrize("step", range(1, 8))
async def test_a_client_that_dies_while_it_brings_a_queue_back(
    store: RedisStore, other: RedisStore, place: Process, clock: FakeClock, step: int
):
    await emptied(store, other, clock)
    assert await leave(store)
    calls = interrupted(other, step, die)
    try:
        made = await put(other, 1, queue="q")
    except Died:
        made = []
    assert len(calls) > step or made
    another = await place()
    made += await put(another, 1, queue="q")
    await takes_jobs(another, made, 2 + len(made))


@pytest.mark.parametrize("step", range(1, 8))
async def test_a_second_departure_while_a_client_brings_a_queue_back(
    store: RedisStore, other: RedisStore, clock: FakeClock, step: int
):
    await emptied(store, other, clock)
    assert await leave(store)
    interrupted(other, step, lambda: leave(store))
    made = await put(other, 1, queue="q")
    await takes_jobs(store, made, 3)


async def test_two_janitors_and_two_clients_at_once(
    store: RedisStore, other: RedisStore, place: Process, clock: FakeClock
):
    third, fourth = await place(), await place()
    total = 0
    for _ in range(15):
        made = await asyncio.gather(
            put(other, 1, queue="q"), store.prune(KEEP), put(third, 2, queue="q"), fourth.prune(KEEP)
        )
        total += 3
        assert await names(store) == ["q"]
        assert sorted(job.id for job in await find_all(store, Filter())) == sorted([*made[0], *made[2]])
        assert [row[:2] for row in await totals(store)] == [("q", total)]
        await run_empty(store, clock)
