"""Presence: workers report themselves with their heartbeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from conformance.kit import TTL, counts, put, take
from headrace.model.lease import ORDERS, UPKEEP_PLACES, Presence, WorkerId, WorkerOrder, new_worker_id
from headrace.model.outcome import Again
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
        memory=5 << 30,
    )


async def test_a_worker_is_listed_as_it_described_itself(store: Store, clock: FakeClock):
    me = presence()
    await store.heartbeat([], TTL, me)
    assert await store.workers() == [replace(me, seen_at=clock.now())]


async def test_the_last_word_counts(store: Store, clock: FakeClock):
    me = presence()
    await store.heartbeat([], TTL, me)
    clock.advance(5)
    now = replace(me, running=0, queues=(), tasks=(), hindered=(), memory=None)
    await store.heartbeat([], TTL, now)
    assert await store.workers() == [replace(now, seen_at=clock.now())]


async def test_the_answer_to_a_heartbeat_tells_the_stores_time(store: Store, clock: FakeClock):
    clock.advance(5)
    assert (await store.heartbeat([], TTL, presence())).now == clock.now()
    clock.advance(5)
    await put(store)
    lease = await take(store)
    assert lease is not None
    assert (await store.heartbeat([lease.token], TTL, replace(presence(), upkeep="group"))).now == clock.now()


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


async def test_claiming_alone_lists_no_worker(store: Store):
    await put(store)
    await take(store)
    assert await store.workers() == []


# ── orders ──────────────────────────────────────────────────────────────────
async def test_a_heartbeat_answers_the_order_of_its_worker(store: Store):
    me, other = presence(), presence()
    assert (await store.heartbeat([], TTL, me)).order == b""
    value = msgspec.json.encode(WorkerOrder("quiet", "ann", await store.now()))
    version = await store.record(ORDERS, str(me.id), value, None)
    await put(store)
    lease = await take(store)
    assert lease is not None
    for upkeep in (None, "group"):
        order = (await store.heartbeat([lease.token], TTL, replace(me, upkeep=upkeep))).order
        assert order == (await store.records(ORDERS))[str(me.id)].value
        assert msgspec.json.decode(order, type=WorkerOrder).kind == "quiet"
        assert (await store.heartbeat([], TTL, replace(other, upkeep=upkeep))).order == b""
    assert (await store.heartbeat([lease.token], TTL)).order == b""
    await store.record(ORDERS, str(me.id), None, version)
    assert (await store.heartbeat([], TTL, me)).order == b""


# ── upkeep ──────────────────────────────────────────────────────────────────
async def does_upkeep(store: Store, worker: WorkerId, group: str = "g") -> bool:
    pulse = await store.heartbeat([], TTL, replace(presence(worker), upkeep=group))
    return pulse.upkeep


async def test_a_heartbeat_without_a_group_gets_no_upkeep(store: Store):
    assert not (await store.heartbeat([], TTL, presence())).upkeep
    assert not (await store.heartbeat([], TTL)).upkeep


async def test_a_few_workers_of_a_group_do_the_upkeep_and_keep_it(store: Store):
    workers = [new_worker_id() for _ in range(UPKEEP_PLACES + 2)]
    expected = [True] * UPKEEP_PLACES + [False] * 2
    assert [await does_upkeep(store, worker) for worker in workers] == expected
    assert [await does_upkeep(store, worker) for worker in workers] == expected


async def test_each_group_has_its_own_upkeep(store: Store):
    for group in ("one", "two"):
        workers = [new_worker_id() for _ in range(UPKEEP_PLACES + 1)]
        assert [await does_upkeep(store, worker, group) for worker in workers] == [True] * UPKEEP_PLACES + [False]


async def test_upkeep_goes_to_another_worker_when_a_heartbeat_is_late(store: Store, clock: FakeClock):
    late, *prompt = [new_worker_id() for _ in range(UPKEEP_PLACES)]
    heir = new_worker_id()
    assert all([await does_upkeep(store, worker) for worker in (late, *prompt)])
    clock.advance(TTL.total_seconds() - 1)
    assert all([await does_upkeep(store, worker) for worker in prompt])
    assert not await does_upkeep(store, heir)
    clock.advance(1)
    assert await does_upkeep(store, heir)
    assert not await does_upkeep(store, late)


@pytest.mark.parametrize("end", ["retire", "abandon"])
async def test_a_worker_that_is_gone_frees_its_upkeep_at_once(store: Store, end: str):
    gone, *_ = workers = [new_worker_id() for _ in range(UPKEEP_PLACES)]
    assert all([await does_upkeep(store, worker) for worker in workers])
    await (store.retire(gone) if end == "retire" else store.abandon(gone, "killed"))
    assert await does_upkeep(store, new_worker_id())
    assert not await does_upkeep(store, new_worker_id())


async def test_a_worker_that_does_upkeep_may_learn_whether_there_is_something_to_claim(store: Store):
    """A store that tells may only be wrong in that it says so of jobs that nothing may claim."""
    here = replace(presence(new_worker_id()), queues=("default",), upkeep="g")
    elsewhere = replace(presence(new_worker_id()), queues=("other",), upkeep="g")
    assert not (await store.heartbeat([], TTL, here)).ready
    await put(store)
    assert (await store.heartbeat([], TTL, here)).ready in {True, None}
    assert not (await store.heartbeat([], TTL, elsewhere)).ready
    assert (await store.heartbeat([], TTL, replace(here, upkeep=None))).ready is None
    lease = await take(store)
    assert not (await store.heartbeat([lease.token], TTL, here)).ready
    await store.settle(lease.token, [(0, Again(1, 0))])
    assert (await store.heartbeat([], TTL, here)).ready in {True, None}


async def test_workers_do_not_list_the_group(store: Store):
    me = new_worker_id()
    await does_upkeep(store, me)
    assert [worker.upkeep for worker in await store.workers()] == [None]
