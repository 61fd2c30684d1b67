"""A claim over several nodes whose answer is lost: repeated under its token it gets all that it holds, and no holes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from conformance.kit import TTL, WORKER, claim, ids, new, put, put_jobs, settle_all, states
from headrace.errors import OutcomeUnknown
from headrace.model.job import JobId, JobState
from headrace.model.lease import Ask, Lease, new_token
from headrace.store.redis.client import scripts
from headrace.store.redis.client.cluster import slot_of
from headrace.store.redis.client.connection import Command, Make, Pool, Reply
from headrace.store.redis.client.faults import Cut
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from servers.redis import RedisCluster

QUEUES = ("qa", "q1", "q2")


class Losses:
    """Loses answers to claims, though the claims are done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after = self.count = 0
        ask = Pool.ask

        async def lossy(
            pool: Pool, commands: Sequence[Command], within: float | None = None, make: Make | None = None
        ) -> list[Reply]:
            answers = await ask(pool, commands, within, make)
            claims = commands[0][:2] == ("EVALSHA", scripts.CLAIM.sha) and not isinstance(answers[0], Exception)
            if claims and self.count:
                if not self.after:
                    self.count -= 1
                    raise Cut("lost", sent=True)
                self.after -= 1
            return answers

        monkeypatch.setattr(Pool, "ask", lossy)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    return Losses(monkeypatch)


@pytest.fixture(params=["queues", "shards"])
async def store(cluster: RedisCluster, request: pytest.FixtureRequest) -> AsyncIterator[ShardedRedisStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    shards = {"qa": 8} if request.param == "shards" else None
    store = ShardedRedisStore(cluster.url(), shards=shards)
    await store.open()
    yield store
    await store.close()


async def put_some(store: ShardedRedisStore) -> list[JobId]:
    names = [(queue, n) for queue in QUEUES for n in range(6)]
    return await put_jobs(store, *[new(queue=queue, tenant=f"t{n}", priority=n % 3) for queue, n in names])


async def repeated(store: ShardedRedisStore, ask: Ask) -> Lease | None:
    while True:
        try:
            return await store.claim(ask)
        except OutcomeUnknown:
            continue


@pytest.mark.parametrize("after", range(6))
async def test_a_repeated_claim_gets_all_that_it_holds(store: ShardedRedisStore, losses: Losses, after: int):
    made = await put_some(store)
    losses.after, losses.count = after, 2
    ask = Ask(WORKER, QUEUES, 100, TTL, new_token())
    with pytest.raises(OutcomeUnknown):
        await store.claim(ask)
    lease = await repeated(store, ask)
    assert lease is not None
    assert all(lease.jobs)
    running = [id for id, state in zip(made, await states(store, made), strict=True) if state is JobState.RUNNING]
    assert sorted(ids(lease)) == sorted(running)
    await settle_all(store, lease)
    rest = await repeated(store, Ask(WORKER, QUEUES, 100, TTL, new_token()))
    if rest is not None:
        await settle_all(store, rest)
    assert set(await states(store, made)) == {JobState.DONE}


async def test_a_claim_that_was_answered_is_answered_again(store: ShardedRedisStore):
    await put_some(store)
    ask = Ask(WORKER, QUEUES, 10, TTL, new_token())
    first, second = await store.claim(ask), await store.claim(ask)
    assert first is not None
    assert len(first.jobs) == 10
    assert second == first


async def test_a_claim_that_found_nothing_may_find_something_when_repeated(store: ShardedRedisStore):
    ask = Ask(WORKER, QUEUES, 10, TTL, new_token())
    assert await store.claim(ask) is None
    made = await put_some(store)
    lease = await store.claim(ask)
    assert lease is not None
    assert set(ids(lease)) < set(made)


async def test_no_holes_where_a_node_does_not_say_what_it_holds(cluster: RedisCluster, losses: Losses):
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store = RedisStore(cluster.url(timeout="1"))
    await store.open()
    # By priority one job of each in turn, so that each queue has positions between those of the others.
    made = await put_jobs(store, *[new(queue=QUEUES[n % 3], priority=9 - n) for n in range(9)])
    losses.after, losses.count = 7, 2
    ask = Ask(WORKER, QUEUES, 100, TTL, new_token())
    with pytest.raises(OutcomeUnknown):
        await store.claim(ask)
    silent = cluster.node_of(slot_of(f"hr:{{{QUEUES[1]}}}:"))
    silent.freeze()
    try:
        lease = await store.claim(ask)
    finally:
        silent.thaw()
    assert lease is not None
    assert ids(lease) == made[: len(lease.jobs)]
    assert 0 < len(lease.jobs) < 9
    await settle_all(store, lease)
    await store.close()


async def test_large_jobs_of_several_queues(store: ShardedRedisStore):
    """A claim reads those that it moved from the node that they are on."""
    made = [id for queue in QUEUES for id in await put(store, 6, queue=queue, payload=b"x" * 600_000)]
    seen: list[JobId] = []
    while lease := await claim(store, 100, *QUEUES):
        seen += ids(lease)
        assert {len(job.payload) for job in lease.jobs} == {600_000}
        await settle_all(store, lease)
    assert len(seen) == len(made)
    assert set(seen) == set(made)
