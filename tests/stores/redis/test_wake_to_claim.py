"""Waiting for a lease: the server claims for the worker it wakes, and a lease that no worker learns of is given back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from conformance.kit import TTL, WORKER, claim, counts, ids, look, put, rule, settle_all, take
from headrace.errors import OutcomeUnknown
from headrace.model.job import JobId
from headrace.model.lease import Ask, Band, Lease, new_token
from headrace.store.contract import Prompt
from headrace.store.redis.arguments import bands_of
from headrace.store.redis.client import scripts
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster, RedisServer
from stores.redis.kit import eventually
from stores.redis.proxy import between

LONG, SHORT = 30.0, 0.05


def ask(limit: int = 10, *queues: str) -> Ask:
    return Ask(WORKER, queues or ("default",), limit, TTL, new_token())


async def lease_of(sleeper: asyncio.Future[Lease | bool]) -> Lease:
    found = await sleeper
    assert isinstance(found, Lease)
    return found


async def sleepers(server: RedisServer, count: int) -> None:
    await eventually(lambda: f"blocked_clients:{count}\r\n" in server.command("INFO", "clients"))


def put_unheard(server: RedisServer) -> list[JobId]:
    """Enqueue a job from another thread while this loop is blocked: a waiting call has its answer and cannot read it."""
    made: list[JobId] = []

    async def elsewhere() -> None:
        store = RedisStore(server.url())
        made.extend(await put(store, 1))
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    thread.join()
    return made


@pytest.fixture
async def warm(real_store: RedisStore) -> RedisStore:
    """The server knows the claim's script."""
    await claim(real_store)
    return real_store


@pytest.mark.parametrize("kind", [RedisStore, ShardedRedisStore])
def test_it_is_a_prompt_store(kind: type[RedisStore | ShardedRedisStore]):
    assert isinstance(kind("redis://127.0.0.1:6379"), Prompt)


async def test_one_job_wakes_one_of_many_with_a_lease(warm: RedisStore, server: RedisServer):
    sleeping = [asyncio.ensure_future(warm.wait_to_claim(ask(), LONG)) for _ in range(5)]
    await sleepers(server, 5)
    made = await put(warm, 1)
    done, asleep = await asyncio.wait(sleeping, return_when=asyncio.FIRST_COMPLETED)
    [sleeper] = done
    lease = await lease_of(sleeper)
    assert ids(lease) == made
    await settle_all(warm, lease)
    # What one leaves, the next gets: ten, ten, five.
    await put(warm, 25)
    leases = []
    while len(leases) < 3:
        done, asleep = await asyncio.wait(asleep, return_when=asyncio.FIRST_COMPLETED)
        leases += [await lease_of(each) for each in done]
    assert sorted(len(lease.jobs) for lease in leases) == [5, 10, 10]
    await sleepers(server, 1)
    for each in asleep:
        each.cancel()
    await asyncio.gather(*asleep, return_exceptions=True)
    await sleepers(server, 0)


async def test_what_was_there_before_is_not_missed(warm: RedisStore):
    made = await put(warm, 3)
    assert ids(await lease_of(asyncio.ensure_future(warm.wait_to_claim(ask(), LONG)))) == made


async def test_the_lease_has_the_token_and_any_of_several_queues_wakes(warm: RedisStore, server: RedisServer):
    asked = ask(10, "a", "b", "c")
    sleeper = asyncio.ensure_future(warm.wait_to_claim(asked, LONG))
    await sleepers(server, 1)
    await put(warm, 2, queue="b")
    lease = await lease_of(sleeper)
    assert lease.token == asked.token
    assert [job.queue for job in lease.jobs] == ["b", "b"]
    await settle_all(warm, lease)


async def test_when_the_time_is_up_it_has_looked(warm: RedisStore):
    assert await warm.wait_to_claim(ask(), SHORT) is False
    assert await warm.wait_to_claim(ask(), 0.0) is False
    assert await warm.wait_to_claim(ask(0), SHORT) is False


async def test_it_wakes_when_a_rate_opens(warm: RedisStore):
    await rule(warm, "slow", rate=20.0, burst=1)
    await put(warm, 2, limits=("slow",))
    await settle_all(warm, await take(warm, 1))
    assert await claim(warm) is None
    found = await warm.wait_to_claim(ask(), LONG)
    lease = found if isinstance(found, Lease) else await take(warm)
    assert len(lease.jobs) == 1


@pytest.mark.parametrize("narrow", ["tenant", "bands"])
async def test_who_asks_for_some_jobs_only_is_given_the_hint(warm: RedisStore, server: RedisServer, narrow: str):
    kind = {"tenant": "other"} if narrow == "tenant" else {"bands": (Band(5, 9, 10),), "only_bands": True}
    asked = Ask(WORKER, ("default",), 10, TTL, new_token(), **kind)  # type: ignore[arg-type]
    sleeper = asyncio.ensure_future(warm.wait_to_claim(asked, LONG))
    await sleepers(server, 1)
    await put(warm, 1)
    assert await sleeper is True
    assert len((await take(warm)).jobs) == 1


# ── called off ───────────────────────────────────────────────────────────────


async def test_who_is_called_off_claims_nothing(warm: RedisStore, server: RedisServer):
    for _ in range(10):
        sleeping = [asyncio.ensure_future(warm.wait_to_claim(ask(), LONG)) for _ in range(3)]
        await sleepers(server, 3)
        for sleeper in sleeping:
            sleeper.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
        await sleepers(server, 0)
    await eventually(lambda: server.command("KEYS", "*:w:*") == "")
    assert server.command("CLIENT", "LIST").count("name=headrace") < 30
    made = await put(warm, 1)
    lease = await take(warm)
    assert ids(lease) == made
    assert lease.jobs[0].attempt == 1


async def test_a_lease_that_nobody_heard_of_is_given_back(warm: RedisStore, server: RedisServer):
    sleeper = asyncio.ensure_future(warm.wait_to_claim(ask(), LONG))
    await sleepers(server, 1)
    made = put_unheard(server)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    async with asyncio.timeout(LONG):
        while (lease := await claim(warm)) is None:
            assert await warm.wait(["default"], LONG)
    assert ids(lease) == made
    assert (lease.jobs[0].failures, lease.jobs[0].crashes, lease.suspect) == (0, 0, False)
    await settle_all(warm, lease)
    await eventually(lambda: server.command("KEYS", "*:w:*") == "")


async def test_a_job_that_comes_after_the_calling_off_is_not_claimed(warm: RedisStore, server: RedisServer):
    """Its bell is there, and the marker woke it all the same: the claim that follows does nothing."""
    asked, bell = ask(), "hr:{default}:w:bell"
    args = warm.claim_script.args(asked, 10, ["default"], bands_of(asked, 10))
    await put(warm, 1)
    server.command("RPUSH", bell, "1")
    assert await warm.client.wire.run(scripts.CLAIM, warm.client.keys.of("default"), *args, bell) is None
    assert await counts(warm) == {"ready": 1}
    server.command("DEL", bell)
    assert len((await warm.client.wire.run(scripts.CLAIM, warm.client.keys.of("default"), *args, bell))[1:]) == 1


async def test_a_store_that_closes_gives_back_what_it_had_not_heard_of(real_store: RedisStore, server: RedisServer):
    leaving = RedisStore(server.url())
    await claim(leaving)
    sleeper = asyncio.ensure_future(leaving.wait_to_claim(ask(), LONG))
    await sleepers(server, 1)
    made = put_unheard(server)
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
    await leaving.close()
    assert await counts(real_store) == {"ready": 1}
    assert ids(await take(real_store)) == made


# ── trouble ──────────────────────────────────────────────────────────────────


async def test_a_server_that_forgot_the_script_gives_the_hint(warm: RedisStore, server: RedisServer):
    sleeper = asyncio.ensure_future(warm.wait_to_claim(ask(), LONG))
    await sleepers(server, 1)
    server.command("SCRIPT", "FLUSH")
    made = await put(warm, 1)
    assert await sleeper is True
    assert ids(await take(warm)) == made


async def test_a_hint_whose_claim_was_refused_goes_to_the_next_if_nobody_follows(warm: RedisStore, server: RedisServer):
    sleeper = asyncio.ensure_future(warm.wait_to_claim(ask(), LONG))
    await sleepers(server, 1)
    server.command("SCRIPT", "FLUSH")
    await put(warm, 1)
    assert await sleeper is True
    other = RedisStore(server.url())
    assert await other.wait(["default"], LONG)
    await other.close()


async def test_a_lost_answer_is_asked_for_again_by_its_token(server: RedisServer):
    server.command("FLUSHALL")
    async with between(server) as proxy:
        store = RedisStore(proxy.url)
        await claim(store)
        asked = ask()
        sleeper = asyncio.ensure_future(store.wait_to_claim(asked, LONG))
        await sleepers(server, 1)
        proxy.cut_answers = 1
        made = await asyncio.to_thread(put_unheard, server)
        with pytest.raises(OutcomeUnknown):
            await sleeper
        assert proxy.cuts == 1
        assert await counts(store) == {"running": 1}
        lease = await store.claim(asked)
        assert ids(lease) == made
        assert lease is not None
        assert lease.token == asked.token
        assert lease.jobs[0].attempt == 1
        await settle_all(store, lease)
        await store.close()


async def test_an_operator_who_wakes_sleepers_harms_nobody(warm: RedisStore, server: RedisServer):
    sleeper = asyncio.ensure_future(warm.wait_to_claim(ask(), LONG))
    await sleepers(server, 1)
    clients = server.command("CLIENT", "LIST").splitlines()
    [blocked] = [line.split()[0].removeprefix("id=") for line in clients if "cmd=blpop" in line]
    server.command("CLIENT", "UNBLOCK", blocked)
    assert await sleeper is False
    assert await claim(warm) is None


# ── more than one server ─────────────────────────────────────────────────────


async def test_on_a_cluster_one_queue_brings_a_lease_and_several_the_hint(cluster: RedisCluster):
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = RedisStore(cluster.url())
    try:
        await claim(store)
        sleeper = asyncio.ensure_future(store.wait_to_claim(ask(), LONG))
        made = await put(store, 1)
        found = await sleeper
        # Its node may not have known the script yet.
        lease = found if isinstance(found, Lease) else await take(store)
        assert ids(lease) == made
        several = asyncio.ensure_future(store.wait_to_claim(ask(10, "default", "q1", "q2"), LONG))
        await put(store, 1, queue="q2")
        assert await several is True
        assert len((await take(store, 10, "default", "q1", "q2")).jobs) == 1
    finally:
        await store.close()


async def test_a_queue_in_parts_gives_the_hint(server: RedisServer):
    server.command("FLUSHALL")
    store = ShardedRedisStore(server.url(), shards={"default": 3})
    await store.open()
    try:
        sleeper = asyncio.ensure_future(store.wait_to_claim(ask(), LONG))
        await sleepers(server, 1)
        made = await put(store, 1)
        assert await sleeper is True
        assert ids(await take(store)) == made
    finally:
        await store.close()


async def test_a_sharded_store_without_parts_brings_a_lease(server: RedisServer):
    server.command("FLUSHALL")
    store = ShardedRedisStore(server.url())
    await store.open()
    try:
        await claim(store)
        sleeper = asyncio.ensure_future(store.wait_to_claim(ask(), LONG))
        await sleepers(server, 1)
        [id] = await put(store, 1)
        lease = await lease_of(sleeper)
        assert (await look(store, id)).attempt == 1
        await settle_all(store, lease)
    finally:
        await store.close()
