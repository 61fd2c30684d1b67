"""Pauses: of queues and tenants, kept by the store; of tasks, kept for workers; also until a time."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import claim, ids, put, queue_stats, take
from headrace.model.records import Pause
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)
MS = timedelta(milliseconds=1)


async def test_a_paused_tenant_waits_in_every_queue(store: Store):
    await put(store, 3, tenant="a")
    await put(store, 3, tenant="a", queue="other")
    wanted = await put(store, 3, tenant="b")
    await store.pause("a", kind="tenant", by="ada")
    assert ids(await take(store, 100, "default", "other")) == wanted
    assert await claim(store, 100, "default", "other") is None
    await store.resume("a", kind="tenant")
    assert len((await take(store, 100, "default", "other")).jobs) == 6


async def test_the_tenant_without_a_name(store: Store):
    await put(store, 2)
    wanted = await put(store, 2, tenant="a")
    await store.pause("", kind="tenant")
    assert ids(await take(store)) == wanted
    await store.resume("", kind="tenant")
    assert len((await take(store)).jobs) == 2


async def test_kinds_do_not_meet(store: Store):
    await put(store, 2, tenant="default")
    await store.pause("default", kind="tenant")
    await store.resume("default")
    assert await claim(store) is None
    await store.resume("default", kind="tenant")
    await store.pause("default", kind="task")
    assert len((await take(store)).jobs) == 2


async def test_a_paused_task_is_only_kept(store: Store):
    await put(store, 2, task="slow")
    await store.pause("slow", kind="task", by="ada")
    assert len((await take(store)).jobs) == 2
    assert [(pause.kind, pause.name, pause.by) for pause in await store.pauses()] == [("task", "slow", "ada")]


async def test_until_a_time(store: Store, clock: FakeClock):
    await put(store, 2, tenant="a")
    await put(store, 2, queue="other")
    await store.pause("a", kind="tenant", until=clock.now() + 10 * S)
    await store.pause("other", until=clock.now() + 20 * S)
    clock.advance(10 * S - MS)
    assert await claim(store, 100, "default", "other") is None
    assert (await queue_stats(store, "other")).paused
    clock.advance(MS)
    assert len((await take(store, 100, "default", "other")).jobs) == 2
    clock.advance(10 * S)
    assert len((await take(store, 100, "default", "other")).jobs) == 2
    assert not (await queue_stats(store, "other")).paused
    assert await store.pauses() == []


async def test_who_and_since_when_is_the_first_ones_word_until_when_the_last_ones(store: Store, clock: FakeClock):
    since = clock.now()
    await store.pause("q", by="ada")
    clock.advance(S)
    until = clock.now() + S
    await store.pause("q", by="bob", until=until)
    assert await store.pauses() == [Pause("queue", "q", "ada", since, until)]
    clock.advance(S)
    assert await store.pauses() == []
    await store.pause("q", by="eve")
    assert await store.pauses() == [Pause("queue", "q", "eve", clock.now(), None)]


async def test_everything_paused_by_kind_and_name(store: Store, clock: FakeClock):
    await store.pause("t", kind="task")
    await store.pause("b", until=clock.now() + S)
    await store.pause("a", kind="tenant", by="x")
    await store.pause("a")
    now = clock.now()
    assert await store.pauses() == [
        Pause("queue", "a", "", now),
        Pause("queue", "b", "", now, now + S),
        Pause("task", "t", "", now),
        Pause("tenant", "a", "x", now),
    ]


async def test_a_job_knows_what_holds_it_back(store: Store, clock: FakeClock):
    [id] = await put(store, tenant="a")
    now = clock.now()
    await store.pause("default", by="ada", until=now + S)
    await store.pause("a", kind="tenant", by="bob", until=now + 2 * S)
    ahead = await store.ahead(id)
    assert ahead is not None
    assert (ahead.paused_by, ahead.paused_since, ahead.paused_until) == ("ada", now, now + S)
    assert (ahead.tenant_paused_by, ahead.tenant_paused_since) == ("bob", now)
    assert ahead.tenant_paused_until == now + 2 * S
    clock.advance(S)
    ahead = await store.ahead(id)
    assert ahead is not None
    assert (ahead.paused_by, ahead.tenant_paused_by) == (None, "bob")


async def test_who_waits_is_woken_when_a_pause_ends(store: Store, clock: FakeClock):
    await put(store, tenant="a")
    await store.pause("default", until=clock.now() + 40 * MS)
    assert await claim(store) is None
    assert await store.wait(["default"], 60) is True
    await store.resume("default")
    await store.pause("a", kind="tenant", until=clock.now() + 40 * MS)
    assert await claim(store) is None
    assert await store.wait(["default"], 60) is True
