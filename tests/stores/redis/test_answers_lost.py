"""Answers that never come: whatever the store repeats happens once, and what it cannot know it says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conformance.kit import RELEASE, TTL, batch, claim, counts, new, put, queue_stats, states, take
from headrace.errors import OutcomeUnknown, StoreError, Unavailable
from headrace.model.job import JobState, job_id
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Finish
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis.proxy import Proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[RedisStore]:
    store = RedisStore(proxy.url)
    await store.open()
    await put(store, queue="warm")
    await take(store, 1, "warm")
    yield store
    await store.close()


async def test_an_enqueue_is_stored_once(store: RedisStore, proxy: Proxy):
    made = batch(new(), new())
    proxy.cut_answers = 1
    assert (await store.enqueue(made)).existing == {}
    assert proxy.cuts == 1
    assert await counts(store) == {"ready": 2}
    assert (await queue_stats(store)).enqueued_total == 2


async def test_a_claim_gets_the_lease_it_has(store: RedisStore, proxy: Proxy):
    await put(store, 5)
    proxy.cut_answers = 1
    lease = await take(store, 3)
    assert proxy.cuts == 1
    assert len(lease.jobs) == 3
    assert await counts(store) == {"running": 3, "ready": 2}
    await store.settle(lease.token, [(0, DONE), (1, DONE), (2, RELEASE)])
    assert await counts(store) == {"ready": 3}


async def test_the_last_settle_of_a_lease_is_not_taken_for_a_late_one(store: RedisStore, proxy: Proxy):
    made = await put(store, 2)
    lease = await take(store)
    proxy.cut_answers = 1
    done = Finish(JobState.DONE, result=b"r")
    assert await store.settle(lease.token, [(0, done), (1, done)]) == frozenset()
    assert proxy.cuts == 1
    assert await states(store, made) == [JobState.DONE] * 2
    assert (await queue_stats(store)).done_total == 2


async def test_a_part_settled_is_settled_once(store: RedisStore, proxy: Proxy):
    made = await put(store, 2)
    lease = await take(store)
    proxy.cut_answers = 1
    assert await store.settle(lease.token, [(0, RELEASE)]) == frozenset()
    assert await states(store, made) == [JobState.READY, JobState.RUNNING]
    assert await store.settle(lease.token, [(1, DONE)]) == frozenset()


async def test_when_every_answer_is_lost_the_outcome_is_unknown_and_the_callers_repetition_counts(
    store: RedisStore, proxy: Proxy
):
    await put(store, 1)
    lease = await take(store)
    proxy.cut_answers = 2
    with pytest.raises(OutcomeUnknown):
        await store.settle(lease.token, [(0, DONE)])
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    # Known again: from here on the token is spent like any other.
    assert await store.settle(lease.token, [(0, DONE)]) == {0}
    assert (await queue_stats(store)).done_total == 1


async def test_a_zombie_is_refused_however_its_answers_are_lost(store: RedisStore, proxy: Proxy):
    await put(store, 1)
    lease = await take(store, ttl=TTL * 0)
    [orphan] = await store.reap(lease.jobs[0].batch, TTL)  # type: ignore[arg-type]  # any worker
    proxy.cut_answers = 1
    assert await store.settle(lease.token, [(0, DONE)]) == {0}
    assert await store.settle(orphan.token, [(0, DONE)]) == frozenset()


async def test_a_detached_job_is_detached_once(store: RedisStore, proxy: Proxy):
    await put(store, 2)
    lease, fresh = await take(store), new_token()
    proxy.cut_answers = 1
    assert await store.detach(lease.token, 1, fresh)
    assert await store.settle(fresh, [(0, DONE)]) == frozenset()


async def test_every_call_of_a_working_life_may_lose_its_answer(store: RedisStore, proxy: Proxy):
    made = []
    for _ in range(40):
        proxy.cut_answers = 1
        sent = batch(new(), new())
        await store.enqueue(sent)
        made += [job_id(sent.id, 0), job_id(sent.id, 1)]
    while True:
        proxy.cut_answers = 1
        if (lease := await claim(store, 7)) is None:
            break
        proxy.cut_answers = 1
        assert await store.settle(lease.token, [(at, DONE) for at in range(len(lease.jobs))]) == frozenset()
    proxy.cut_answers = 0
    assert await states(store, made) == [JobState.DONE] * 80
    assert (await queue_stats(store)).done_total == 80
    assert proxy.cuts >= 60


async def test_a_silent_server_is_given_up(server: RedisServer, proxy: Proxy):
    store = RedisStore(f"{proxy.url}?timeout=3")
    await store.open()
    proxy.silent = True
    with pytest.raises(StoreError):
        await store.stats()
    proxy.silent = False
    assert (await store.stats()).queues == []
    await store.close()


async def test_connections_closed_by_the_server_are_replaced_unnoticed(store: RedisStore, server: RedisServer):
    for _ in range(5):
        await put(store, 1)
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        lease = await take(store)
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await counts(store) == {}


async def test_an_operators_word_is_not_repeated(store: RedisStore, proxy: Proxy):
    [id, other] = await put(store, 2)
    await store.cancel([other])
    proxy.cut_answers = 1
    with pytest.raises(OutcomeUnknown, match="ask again"):
        await store.cancel([id])
    assert await states(store, [id]) == [JobState.CANCELLED]


async def test_a_script_that_is_cut_while_it_is_sent_is_our_error_and_nothing_is_done(
    store: RedisStore, proxy: Proxy, server: RedisServer
):
    made = batch(new())
    server.command("SCRIPT", "FLUSH")
    proxy.cut_word, proxy.cut_answers = b"SCRIPT", 1
    with pytest.raises(Unavailable):
        await store.enqueue(made)
    assert proxy.cuts == 1
    await store.enqueue(made)
    assert await counts(store) == {"ready": 1}


async def test_nobody_there(proxy: Proxy):
    store = RedisStore("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        await store.open()
    await store.close()
