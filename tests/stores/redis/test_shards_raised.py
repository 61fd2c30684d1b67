"""A queue in use gets more shards: the number only grows, pauses hold, few tenants move, all stores learn it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from conformance.kit import RELEASE, batch, claim, find_all, ids, new, put_jobs, settle_all, states, take
from headrace.model.job import JobId, JobState
from headrace.model.records import CancelAnswer, Filter
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.shards import Shards
from servers.redis import RedisCluster, RedisServer


class Place:
    """One server or a cluster, and the processes that have opened a store there."""

    def __init__(self, url: str, nodes: list[RedisServer]) -> None:
        self._url, self._nodes = url, nodes
        self.stores: list[ShardedRedisStore] = []

    def process(self, shards: int | None = None) -> ShardedRedisStore:
        """One that declares so many shards, or none."""
        store = ShardedRedisStore(self._url, shards={"hot": shards} if shards else None)
        self.stores.append(store)
        return store

    async def opened(self, shards: int | None = None) -> ShardedRedisStore:
        store = self.process(shards)
        await store.open()
        return store

    def flush(self) -> None:
        for node in self._nodes:
            node.command("FLUSHALL")

    async def written(self) -> int:
        """The number of shards that a new store sees."""
        other = await self.opened()
        return len({where for n in range(4000) for where in [shard_of(other, f"t{n}")]})


@pytest.fixture(params=["server", "cluster"])
async def place(server: RedisServer, cluster: RedisCluster, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    one = request.param == "server"
    place = Place(server.url() if one else cluster.url(), [server] if one else cluster.nodes)
    place.flush()
    yield place
    for store in place.stores:
        await store.close()


def shard_of(store: ShardedRedisStore, tenant: str) -> str:
    """Where a process would put a job."""
    [job] = store.counts.shards.spread(batch(new(queue="hot", tenant=tenant))).jobs
    return job.lane.queue


def on_copying_pauses(
    monkeypatch: pytest.MonkeyPatch, store: ShardedRedisStore, act: Callable[[], Awaitable[object]]
) -> None:
    """When this process has copied a pause to new shards, and has not written the number yet."""
    copy = store.counts.copy_pause
    calls: list[str] = []

    async def copy_then_act(queue: str, shards: Sequence[str]) -> bytes | None:
        found = await copy(queue, shards)
        calls.append(queue)
        if len(calls) == 1:
            await act()
        return found

    monkeypatch.setattr(store.counts, "copy_pause", copy_then_act)


async def one_per_tenant(store: ShardedRedisStore, count: int = 40) -> list[JobId]:
    return await put_jobs(store, *[new(queue="hot", tenant=f"t{n}") for n in range(count)])


# ── pauses ───────────────────────────────────────────────────────────────────


async def test_a_paused_queue_stays_paused(place: Place):
    before = await place.opened(2)
    await before.pause("hot", by="ada")
    after = await place.opened(8)
    made = await one_per_tenant(after)
    assert await claim(after, 100, "hot") is None
    assert [(one.name, one.by) for one in await after.pauses()] == [("hot", "ada")]
    await after.resume("hot")
    assert sorted(ids(await take(after, 100, "hot"))) == sorted(made)


async def test_who_opened_before_pauses_and_resumes_the_new_shards_too(place: Place):
    before, after = await place.opened(2), await place.opened(8)
    made = await one_per_tenant(after)
    await before.pause("hot")
    assert await claim(after, 100, "hot") is None
    other = await place.opened(12)
    await before.resume("hot")
    assert await other.pauses() == []
    assert sorted(ids(await take(other, 100, "hot"))) == sorted(made)


async def test_who_pauses_during_the_raise_pauses_the_new_shards_too(place: Place, monkeypatch: pytest.MonkeyPatch):
    before, after = await place.opened(2), place.process(8)
    on_copying_pauses(monkeypatch, after, lambda: before.pause("hot", by="ada"))
    await after.open()
    await one_per_tenant(after)
    assert await claim(after, 100, "hot") is None


async def test_who_resumes_during_the_raise_resumes_the_new_shards_too(place: Place, monkeypatch: pytest.MonkeyPatch):
    before, after = await place.opened(2), place.process(8)
    await before.pause("hot", by="ada")
    on_copying_pauses(monkeypatch, after, lambda: before.resume("hot"))
    await after.open()
    made = await one_per_tenant(after)
    assert sorted(ids(await take(after, 100, "hot"))) == sorted(made)


# ── how many ─────────────────────────────────────────────────────────────────


async def test_of_two_that_open_at_once_the_higher_number_counts(place: Place, monkeypatch: pytest.MonkeyPatch):
    few = place.process(4)
    on_copying_pauses(monkeypatch, few, lambda: place.opened(8))
    await few.open()
    assert await place.written() == 8
    assert Counter(shard_of(few, f"t{n}") for n in range(100)).keys() == {"hot", *(f"hot#{n}" for n in range(1, 8))}


async def test_a_worker_learns_of_new_shards_when_it_tidies_up(place: Place):
    worker = await place.opened()
    made = await one_per_tenant(await place.opened(8))
    await worker.promote()
    assert sorted(ids(await take(worker, 100, "hot"))) == sorted(made)


async def test_a_producer_learns_of_new_shards_when_it_reads_the_clock(place: Place):
    producer = await place.opened(2)
    after = await place.opened(8)
    await producer.now()
    tenants = [f"t{n}" for n in range(100)]
    assert [shard_of(producer, tenant) for tenant in tenants] == [shard_of(after, tenant) for tenant in tenants]


async def test_a_number_that_was_flushed_is_written_again(place: Place):
    store = await place.opened(8)
    place.flush()
    await store.now()
    assert await place.written() == 8


# ── what was there before ────────────────────────────────────────────────────


async def test_jobs_from_before_are_found_and_run_wherever_they_lie(place: Place):
    before = await place.opened(2)
    made = await one_per_tenant(before)
    lease = await take(before, 10, "hot")
    after = await place.opened(8)
    made += await one_per_tenant(after)
    assert all(await after.get(made))
    assert [job.id for job in await find_all(before, Filter(queue="hot"), limit=9)] == sorted(made, reverse=True)
    assert await before.settle(lease.token, [(at, RELEASE) for at in range(10)]) == frozenset()
    assert await before.cancel(made[:1]) == {made[0]: CancelAnswer.CANCELLED}
    assert await after.delete(made[1:2]) == {made[1]}
    assert await before.cancel(made[-1:]) == {made[-1]: CancelAnswer.CANCELLED}
    assert await after.retry(made[-1:]) == {made[-1]}
    rest = await take(after, 100, "hot")
    assert sorted(ids(rest)) == sorted(made[2:])
    await settle_all(after, rest)
    assert set(await states(before, made[2:])) == {JobState.DONE}


# ── which tenants move ───────────────────────────────────────────────────────


def spread(count: int, names: int = 4000) -> list[int]:
    made = batch(*[new(queue="hot", tenant=f"t{n}") for n in range(names)])
    return [Shards({"hot": count}).of("hot").index(job.lane.queue) for job in Shards({"hot": count}).spread(made).jobs]


@pytest.mark.parametrize(("few", "many"), [(2, 3), (7, 8), (2, 8), (8, 16), (30, 64)])
def test_only_the_share_of_the_new_shards_moves_and_only_there(few: int, many: int):
    before, after = spread(few), spread(many)
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    assert all(new >= few for new in moved)
    wanted = len(before) * (many - few) / many
    assert 0.85 * wanted < len(moved) < 1.15 * wanted


@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_shards_get_even_shares(count: int):
    sizes = Counter(spread(count))
    assert len(sizes) == count
    assert max(sizes.values()) < 1.25 * min(sizes.values()) + 40
