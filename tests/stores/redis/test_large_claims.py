"""Large jobs go from their lane into a lease inside the server. The claim's script does not read them, and the log does not repeat them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import JANITOR, RELEASE, TTL, claim, find_all, ids, new, put, put_jobs, settle_all, states, take
from headrace.model.job import JobState
from headrace.model.lease import LEASE_BYTES, new_token
from headrace.model.records import Filter, Retention
from headrace.store.redis.client.wire import Wire
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis.test_enqueue_one import commands

LARGE = b"x" * 1_000_000


def logged(server: RedisServer) -> int:
    """Bytes of the server's log of commands."""
    [line] = (
        each for each in server.command("INFO", "persistence").splitlines() if each.startswith("aof_current_size:")
    )
    return int(line.partition(":")[2])


@pytest.mark.parametrize("count", [1, 3])
async def test_no_payload_is_logged_twice(store: RedisStore, server: RedisServer, count: int):
    made = await put(store, count, payload=LARGE)
    before = logged(server)
    lease = await take(store, 10)
    assert [(job.id, job.payload) for job in lease.jobs] == [(id, LARGE) for id in made]
    await settle_all(store, lease)
    assert logged(server) - before < 10_000
    assert await states(store, made) == [JobState.DONE] * count
    assert [job.payload for job in await find_all(store)] == [LARGE] * count
    assert (await store.prune(Retention(done=timedelta(0), dead=timedelta(0)))).jobs == count


async def test_a_claim_of_large_jobs_is_one_move_and_one_look(store: RedisStore, server: RedisServer):
    await put(store, 10, payload=LARGE)
    await take(store, 10)
    server.command("CONFIG", "RESETSTAT")
    lease = await take(store, 10)
    seen = commands(server)
    assert len(lease.jobs) > 1
    assert (seen["sort"], seen["ltrim"], seen["lrange"]) == (1, 1, 1)


async def test_jobs_of_several_sizes_keep_their_order_and_fit(store: RedisStore):
    made = await put_jobs(store, *[new(payload=LARGE)] * 3, *[new()] * 300, *[new(payload=LARGE)] * 9, *[new()] * 20)
    taken = []
    while lease := await claim(store, 500):
        assert sum(len(job.payload) for job in lease.jobs) < 3 * LEASE_BYTES
        taken += ids(lease)
        await settle_all(store, lease)
    assert taken == made


async def test_cancelled_ones_are_passed_over(store: RedisStore):
    made = await put(store, 6, payload=LARGE)
    await store.cancel([made[1], made[4]])
    taken = []
    while lease := await claim(store, 500):
        taken += ids(lease)
    assert taken == [made[place] for place in (0, 2, 3, 5)]


async def test_a_lane_is_plain_again_when_its_large_jobs_have_gone(store: RedisStore, server: RedisServer):
    await put(store, 2, payload=LARGE)
    await settle_all(store, await take(store, 10))
    assert server.command("EXISTS", "hr:{default}:z").strip() == "0"


async def test_a_repeated_claim_answers_the_same_jobs(store: RedisStore):
    await put(store, 8, payload=LARGE)
    token = new_token()
    first, again = [await claim(store, 10, token=token) for _ in range(2)]
    assert first is not None
    assert again is not None
    assert first.jobs == again.jobs


async def test_large_jobs_of_a_dead_worker_come_back(store: RedisStore):
    made = await put(store, 3, payload=LARGE)
    await take(store, 10, ttl=timedelta(0))
    [orphan] = await store.reap(JANITOR, TTL)
    assert [(job.id, job.payload) for _, job in orphan.jobs] == [(id, LARGE) for id in made]


async def test_no_jobs_of_a_lease_that_was_lost_before_they_were_read(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
):
    made = await put(store, 3, payload=LARGE)
    elements = Wire.elements

    async def late(wire: Wire, *args: Any) -> list[Any]:
        [orphan] = await store.reap(JANITOR, TTL)
        await store.settle(orphan.token, [(position, RELEASE) for position, _ in orphan.jobs])
        return await elements(wire, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Wire, "elements", late)
        assert await claim(store, 10, ttl=timedelta(0)) is None
    assert await states(store, made) == [JobState.READY] * 3


async def test_large_jobs_share_a_lease_with_those_of_other_lanes(store: RedisStore):
    made = await put_jobs(
        store,
        *[new(tenant="a", payload=b"x" * 50_000)] * 3,
        *[new(tenant="b", limits=("api",))] * 3,
        *[new(tenant="c")] * 3,
    )
    lease = await take(store, 50)
    assert sorted(ids(lease)) == sorted(made)
    assert await states(store, made) == [JobState.RUNNING] * 9
    await settle_all(store, lease)
    assert len(await find_all(store, Filter(states=frozenset({JobState.DONE})))) == 9


async def test_a_user_who_may_not_sort_gets_large_jobs_too(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "clerk", "reset", "on", ">pw", "~hr:*", "&*", "+@all", "-sort")
    store = RedisStore(f"redis://clerk:pw@127.0.0.1:{own_server.port}/0")
    await store.open()
    made = await put(store, 5, payload=LARGE)
    taken = []
    while lease := await claim(store, 500):
        assert sum(len(job.payload) for job in lease.jobs) <= LEASE_BYTES
        taken += ids(lease)
    assert taken == made
    await store.close()
