"""Presence: workers say who they are with their heartbeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from conformance.kit import TTL, counts, put, take
from headrace.model.lease import Presence, WorkerId, new_worker_id
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


def presence(id: WorkerId | None = None, name: str = "host:42") -> Presence:
    return Presence(
        id=id or new_worker_id(),
        name=name,
        queues=("default", "mail"),
        slots=100,
        running=7,
        version="0.1.0",
        started_at=datetime(2026, 1, 1, 9, 30, 0, 1, tzinfo=UTC),
        tasks=("a.b", "c"),
        hindered=("quarantine", "settling"),
    )


async def test_a_worker_is_listed_as_it_described_itself(store: Store, clock: FakeClock):
    me = presence()
    await store.heartbeat([], TTL, me)
    assert await store.workers() == [replace(me, seen_at=clock.now())]


async def test_the_last_word_counts(store: Store, clock: FakeClock):
    me = presence()
    await store.heartbeat([], TTL, me)
    clock.advance(5)
    now = replace(me, running=0, queues=(), tasks=(), hindered=())
    await store.heartbeat([], TTL, now)
    assert await store.workers() == [replace(now, seen_at=clock.now())]


async def test_several_workers(store: Store):
    ids = {(await heartbeat(store)).id for _ in range(5)}
    assert {worker.id for worker in await store.workers()} == ids


async def heartbeat(store: Store) -> Presence:
    me = presence()
    await store.heartbeat([], TTL, me)
    return me


async def test_a_worker_not_heard_of_for_a_minute_is_not_listed(store: Store, clock: FakeClock):
    old = await heartbeat(store)
    clock.advance(40)
    young = await heartbeat(store)
    assert {worker.id for worker in await store.workers()} == {old.id, young.id}
    clock.advance(21)
    assert [worker.id for worker in await store.workers()] == [young.id]
    clock.advance(timedelta(hours=1))
    assert await store.workers() == []


async def test_a_worker_may_come_back(store: Store, clock: FakeClock):
    me = await heartbeat(store)
    clock.advance(120)
    await store.heartbeat([], TTL, me)
    assert [worker.id for worker in await store.workers()] == [me.id]


async def test_retire_forgets_a_worker_and_nothing_else(store: Store):
    await put(store)
    me, other = await heartbeat(store), await heartbeat(store)
    await take(store, worker=me.id)
    await store.retire(me.id)
    await store.retire(me.id)
    await store.retire(new_worker_id())
    assert [worker.id for worker in await store.workers()] == [other.id]
    assert await counts(store) == {"running": 1}


async def test_claiming_alone_lists_nobody(store: Store):
    await put(store)
    await take(store)
    assert await store.workers() == []
