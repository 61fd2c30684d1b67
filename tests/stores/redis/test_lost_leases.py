"""Leases of the dead are taken over whatever is lost meanwhile: an answer, a queue's order, the way of a token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from conformance.kit import (
    JANITOR,
    RELEASE,
    TTL,
    counts,
    ids,
    new,
    put,
    put_jobs,
    rule,
    state,
    states,
    take,
)
from headrace.errors import ConfigError, OutcomeUnknown
from headrace.model.job import JobId, JobState
from headrace.model.lease import Orphan
from headrace.model.outcome import DONE
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.proxy import Proxy, between


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    server.command("FLUSHALL")
    async with between(server) as proxy:
        yield proxy
    server.command("FLUSHALL")


@pytest.fixture
async def store(proxy: Proxy, clock: FakeClock) -> AsyncIterator[RedisStore]:
    """The server knows the scripts that matter here."""
    store = RedisStore(proxy.url, clock=clock)
    await store.open()
    await put(store, queue="warm")
    await take(store, 1, "warm")
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert await store.settle(orphan.token, [(0, DONE)]) == frozenset()
    yield store
    await store.close()


def orphaned(orphans: list[Orphan]) -> list[JobId]:
    return [job.id for orphan in orphans for _, job in orphan.jobs]


async def test_a_lost_answer_costs_one_lease_its_time_and_no_other_anything(
    store: RedisStore, proxy: Proxy, clock: FakeClock
):
    first, second = await put(store, 2), await put(store, 2)
    await take(store, 2)
    await take(store, 2)
    clock.advance(TTL)
    proxy.spare_answers, proxy.cut_answers = 1, 1  # that which queues have such leases comes through
    with pytest.raises(OutcomeUnknown):
        await store.reap(JANITOR, TTL)
    [other] = await store.reap(JANITOR, TTL)
    assert orphaned([other]) == second
    assert await store.settle(other.token, [(0, RELEASE), (1, RELEASE)]) == frozenset()
    assert await store.reap(JANITOR, TTL) == []
    clock.advance(TTL)
    [again] = await store.reap(JANITOR, TTL)
    assert orphaned([again]) == first
    assert await store.settle(again.token, [(0, DONE), (1, RELEASE)]) == frozenset()
    assert await counts(store) == {"ready": 3}


async def test_what_was_taken_over_before_is_heard_of(store: RedisStore, proxy: Proxy, clock: FakeClock):
    [id] = await put(store, queue="a")
    await put(store, queue="b")
    await take(store, 1, "a")
    await take(store, 1, "b")
    clock.advance(TTL)
    proxy.cut_word, proxy.cut_answers = b"hr:{b}:", 1
    assert orphaned(await store.reap(JANITOR, TTL)) == [id]
    assert proxy.cuts == 1


async def test_the_parts_of_one_lease_come_together_though_an_answer_is_lost(
    store: RedisStore, proxy: Proxy, clock: FakeClock
):
    await put_jobs(store, new(queue="a"), new(queue="b"))
    lease = await take(store, 2, "a", "b")
    clock.advance(TTL)
    proxy.cut_word, proxy.cut_answers = b"hr:{b}:", 1
    [orphan] = await store.reap(JANITOR, TTL)
    assert proxy.cuts == 1
    assert sorted(orphaned([orphan])) == sorted(ids(lease))
    assert await store.settle(orphan.token, [(0, DONE), (1, DONE)]) == frozenset()
    assert await states(store, ids(lease)) == [JobState.DONE] * 2


async def test_one_lease_without_its_token_stops_nobody(store: RedisStore, server: RedisServer, clock: FakeClock):
    """As if it had been lost; what the lease holds is still given back."""
    await rule(store, "shop", concurrency=1)
    await put(store, 1, limits=("shop",))
    [waits] = await put(store, 1, limits=("shop",))
    await take(store, 1)
    await put(store, 1, tenant="other")
    await take(store, 1)
    server.command("DEL", "hr:{default}:t")
    clock.advance(TTL)
    found = await store.reap(JANITOR, TTL)
    assert len(orphaned(found)) == 2
    for orphan in found:
        assert await store.settle(orphan.token, [(0, DONE)]) == frozenset()
    assert ids(await take(store, 1)) == [waits]


async def test_a_token_that_is_another_leases_stays_with_it(store: RedisStore, server: RedisServer, clock: FakeClock):
    [old], [young] = await put(store, 1), await put(store, 1)
    first = await take(store, 1)
    clock.advance(TTL / 2)
    second = await take(store, 1)
    number = server.command("HGET", "hr:{default}:t", second.token.hex)
    server.command("HSET", "hr:{default}:t", first.token.hex, number)
    clock.advance(TTL / 2)
    [orphan] = await store.reap(JANITOR, TTL)
    assert orphaned([orphan]) == [old]
    assert await store.settle(orphan.token, [(0, DONE)]) == frozenset()
    assert [await state(store, old), await state(store, young)] == [JobState.DONE, JobState.RUNNING]


async def test_a_queue_that_is_broken_keeps_no_other_from_its_jobs(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    await put(store, queue="a")
    [id] = await put(store, queue="b")
    await take(store, 1, "a")
    await take(store, 1, "b")
    server.command("DEL", "hr:{a}:Z")
    server.command("SET", "hr:{a}:Z", "?")
    clock.advance(TTL)
    assert orphaned(await store.reap(JANITOR, TTL)) == [id]
    with pytest.raises(ConfigError):
        await store.reap(JANITOR, TTL)


async def test_a_queue_that_is_broken_keeps_no_other_from_being_promoted(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    await put(store, queue="a", due=timedelta(seconds=1))
    await put(store, queue="b", due=timedelta(seconds=2))
    server.command("DEL", "hr:{a}:D")
    server.command("SET", "hr:{a}:D", "?")
    clock.advance(3)
    assert (await store.promote()).moved == 1
    clock.advance(3)
    with pytest.raises(ConfigError):
        await store.promote()
