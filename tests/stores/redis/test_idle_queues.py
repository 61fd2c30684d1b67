"""Queues without jobs: they cost nothing, are forgotten but for their totals, and an enqueue at that moment is not lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.kit import JANITOR, RELEASE, TTL, WORKER, claim, find_all, new, put, put_jobs, settle_all, take
from headrace.model.lease import Lease
from headrace.model.outcome import DONE
from headrace.model.records import Filter, Retention
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.test_looks import commands_run

KEEP = Retention(done=timedelta(minutes=1), dead=timedelta(minutes=1))


@pytest.fixture
async def emptied(store: RedisStore, clock: FakeClock) -> RedisStore:
    """A store with a queue `q` that has had a job."""
    await put(store, queue="q")
    await settle_all(store, await take(store, 1, "q"))
    clock.advance(61)
    assert (await store.prune(KEEP)).jobs == 1
    return store


async def forgotten(store: RedisStore, clock: FakeClock) -> None:
    """Until the tokens of its leases are, too."""
    for _ in range(3):
        await store.prune(KEEP)
        clock.advance(601)


async def names(store: RedisStore) -> list[str]:
    return await store.queues.names()


# ── forgetting ──────────────────────────────────────────────────────────────


async def test_a_queue_without_jobs_leaves_its_totals_only(emptied: RedisStore, server: RedisServer, clock: FakeClock):
    before = await emptied.stats()
    assert [(one.queue, one.enqueued_total, one.done_total) for one in before.queues] == [("q", 1, 1)]
    await forgotten(emptied, clock)
    assert await names(emptied) == []
    assert server.command("KEYS", "hr:{q}:*") == ""
    assert await emptied.stats() == before
    await put(emptied, 2, queue="q")
    assert [(one.enqueued_total, one.ready) for one in (await emptied.stats()).queues] == [(3, 2)]
    await settle_all(emptied, await take(emptied, 2, "q"))
    clock.advance(61)
    await emptied.prune(KEEP)
    await forgotten(emptied, clock)
    assert server.command("KEYS", "hr:{q}:*") == ""
    assert [(one.enqueued_total, one.done_total) for one in (await emptied.stats()).queues] == [(3, 3)]


@pytest.mark.parametrize("due", [None, timedelta(hours=1)])
async def test_one_with_jobs_is_kept(emptied: RedisStore, clock: FakeClock, due: timedelta | None):
    await put(emptied, queue="q", due=due)
    await forgotten(emptied, clock)
    assert await names(emptied) == ["q"]


async def test_a_paused_one_is_kept(emptied: RedisStore, clock: FakeClock):
    await emptied.pause("q", by="me")
    await forgotten(emptied, clock)
    assert [pause.name for pause in await emptied.pauses()] == ["q"]
    await emptied.resume("q")
    await forgotten(emptied, clock)
    assert await names(emptied) == []


async def test_a_pause_brings_it_back(emptied: RedisStore, clock: FakeClock):
    await forgotten(emptied, clock)
    await emptied.pause("q", by="me")
    assert [(one.queue, one.enqueued_total, one.paused) for one in (await emptied.stats()).queues] == [("q", 1, True)]


@pytest.mark.parametrize("due", [None, timedelta(seconds=5)])
async def test_an_enqueue_brings_it_back(emptied: RedisStore, clock: FakeClock, due: timedelta | None):
    """Also by a process that has listed it before."""
    await forgotten(emptied, clock)
    emptied.queues.registered.add("q")
    [id] = await put(emptied, queue="q", due=due)
    assert await names(emptied) == ["q"]
    assert [job.id for job in await find_all(emptied, Filter())] == [id]
    clock.advance(6)
    assert (await emptied.promote()).moved == (due is not None)
    lease = await take(emptied, 1, "q")
    assert [job.id for job in lease.jobs] == [id]
    clock.advance(TTL.total_seconds() + 1)
    [orphan] = await emptied.reap(JANITOR, TTL)
    assert await emptied.settle(orphan.token, [(0, DONE)]) == frozenset()


async def test_a_refresh_does_not_list_it_again(emptied: RedisStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    await forgotten(emptied, clock)
    # As a process has it that did not forget the queue itself.
    emptied.queues.registered.add("q")
    monkeypatch.setattr(emptied.time, "clock", None)
    await emptied.now()
    assert await names(emptied) == []
    assert "q" not in emptied.queues.registered


async def test_enqueues_in_the_moment_of_forgetting_are_found(emptied: RedisStore, clock: FakeClock):
    for _ in range(30):
        await forgotten(emptied, clock)
        await put(emptied, queue="q")
        await settle_all(emptied, await take(emptied, 1, "q"))
        clock.advance(1300)
        await emptied.prune(KEEP)  # the job goes
        await emptied.prune(KEEP)  # the tokens turn
        clock.advance(601)
        _, ids = await asyncio.gather(emptied.prune(KEEP), put(emptied, queue="q"))
        assert await names(emptied) == ["q"]
        assert [job.id for job in await find_all(emptied, Filter())] == ids
        await settle_all(emptied, await take(emptied, 1, "q"))
        clock.advance(61)
        assert (await emptied.prune(KEEP)).jobs == 1


async def done_alone(store: RedisStore) -> Lease:
    await put(store)
    lease = await take(store, 1)
    await settle_all(store, lease)
    return lease


async def test_tokens_of_settled_leases_are_remembered_for_minutes_only(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    def remembered() -> int:
        return sum(int(server.command("LLEN", f"hr:{{default}}:{name}")) for name in ("y", "y2"))

    leases = [await done_alone(store) for _ in range(20)]
    lease = leases[-1]
    assert remembered() == 20
    keep = Retention()
    for _ in range(2):
        await store.prune(keep)
        assert remembered() == 20
        # A settle that is repeated after a lost answer finds that it was done.
        store.leases.doubtful.add(lease.token)
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        clock.advance(300)
    clock.advance(600)
    await store.prune(keep)
    clock.advance(600)
    await store.prune(keep)
    assert remembered() == 0
    assert (await store.stats()).queues[0].done_total == 20


# ── janitors ────────────────────────────────────────────────────────────────


async def test_a_janitor_asks_only_where_something_may_be_to_do(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    async def chores() -> int:
        before = commands_run(server)
        await store.promote()
        await store.reap(JANITOR, TTL)
        await store.pauses()
        return commands_run(server) - before

    await put(store)
    await chores()
    few = await chores()
    await put_jobs(store, *[new(queue=f"q{n}") for n in range(300)])
    assert await chores() == few


async def test_what_is_due_in_many_queues_is_promoted(store: RedisStore, clock: FakeClock):
    await put_jobs(store, *[new(queue=f"q{n}", due=timedelta(seconds=1 + n % 7)) for n in range(250)])
    assert (await store.promote()).next_due == timedelta(seconds=1)
    clock.advance(3)
    promoted = await store.promote()
    assert promoted.moved == sum(n % 7 <= 2 for n in range(250))
    while not promoted.next_due:
        promoted = await store.promote()
    assert promoted.next_due == timedelta(seconds=1)
    clock.advance(10)
    assert (await store.promote(limit=100)).moved == 100
    rest = 0
    while (promoted := await store.promote()).moved:
        rest += promoted.moved
    assert rest == sum(n % 7 > 2 for n in range(250)) - 100
    assert promoted.next_due is None


async def test_a_job_that_goes_away_leaves_no_time_behind(store: RedisStore, clock: FakeClock):
    [soon] = await put(store, due=timedelta(seconds=5))
    await put(store, queue="other", due=timedelta(seconds=50))
    await store.cancel([soon])
    assert (await store.promote()).next_due == timedelta(seconds=50)


async def test_a_heartbeat_with_a_shorter_time_counts(store: RedisStore, clock: FakeClock):
    await put(store, 2)
    lease = await claim(store, 1, ttl=timedelta(minutes=10))
    assert lease is not None
    await store.heartbeat([lease.token], timedelta(seconds=5))
    clock.advance(6)
    assert len(await store.reap(JANITOR, TTL)) == 1


async def test_leases_of_many_queues_are_reaped(store: RedisStore, clock: FakeClock):
    await put_jobs(store, *[new(queue=f"q{n}") for n in range(40)])
    leases = [await take(store, 1, f"q{n}") for n in range(40)]
    await store.heartbeat([lease.token for lease in leases[:20]], timedelta(minutes=1))
    clock.advance(TTL.total_seconds() + 1)
    found = []
    while orphans := await store.reap(JANITOR, TTL):
        found += orphans
    assert sorted(job.queue for orphan in found for _, job in orphan.jobs) == sorted(f"q{n}" for n in range(20, 40))
    for orphan in found:
        await store.settle(orphan.token, [(0, RELEASE)])
    assert await store.abandon(WORKER, "died") == 20
    assert len(await store.reap(JANITOR, TTL, limit=100)) == 20
