"""Workers of an earlier version beside this one: what they would misread is not stored while they are there."""

from __future__ import annotations

import pytest
from msgspec import msgpack
from msgspec.structs import asdict

from conformance.kit import TTL, claim, ids, new, put
from conformance.test_gates import a_gate, chain, waiting
from headrace.errors import Unsupported
from headrace.model.job import Batch, JobState, new_batch
from headrace.model.lease import Presence, new_worker_id
from headrace.store.gates import Upgrading
from headrace.store.redis.records import GENERATION
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from headrace.task.retry import Retry
from headrace.task.steps import step
from headrace.testing.clock import FakeClock
from servers.redis import RedisServer
from stores.redis.test_gates import calls
from worker.harness import Bench


def presence(clock: FakeClock, *queues: str) -> Presence:
    return Presence(
        id=new_worker_id(), name="old:1", queues=queues, slots=1, running=0, version="0.0.9", started_at=clock.now()
    )


async def appear(store: RedisStore, clock: FakeClock, *queues: str, generation: int | None = None) -> Presence:
    """Write what a worker of an earlier version writes with its heartbeat. generation: None: it knows of none."""
    worker = presence(clock, *queues)
    told = {} if generation is None else {"generation": generation}
    record = msgpack.encode((int(clock.now().timestamp() * 1_000_000), {**asdict(worker), **told}))
    key = store.client.keys.workers
    await store.client.wire.command(key, "HSET", key, worker.id.bytes, record)
    return worker


async def test_links_are_refused_while_an_older_worker_serves_the_queue(
    store: RedisStore, server: RedisServer, clock: FakeClock
):
    worker = await appear(store, clock, "default", "mail")
    with pytest.raises(Unsupported, match=r"old:1 \(headrace 0\.0\.9\) serves default .*Upgrade this worker"):
        await chain(store, 2)
    gate = a_gate()
    with pytest.raises(Unsupported, match="nothing was stored"):
        await store.enqueue(Batch(new_batch(), [new(queue="other")], (gate,)))
    assert await store.gates([gate.id]) == [None]
    assert await claim(store) is None
    # Ordinary jobs, and links in queues that it does not serve, are as ever.
    [plain] = await put(store)
    assert ids(await claim(store)) == [plain]
    await store.enqueue(Batch(new_batch(), [new(queue="other"), waiting(plain, queue="other")]))
    await store.retire(worker.id)
    later = RedisStore(server.url(), clock=clock)
    await later.open()
    await chain(later, 2)
    await later.close()


async def test_a_chain_is_refused_while_a_worker_that_knows_none_serves_the_queue(store: RedisStore, clock: FakeClock):
    worker = await appear(store, clock, "default", generation=GENERATION - 1)
    with pytest.raises(Unsupported, match="nothing was stored"):
        await chain(store, 20)
    await store.retire(worker.id)
    assert await claim(store) is None


async def test_a_worker_of_this_version_is_no_obstacle(store: RedisStore, clock: FakeClock):
    await store.heartbeat([], TTL, presence(clock, "default"))
    await chain(store, 2)


async def test_a_worker_that_was_killed_is_forgotten(store: RedisStore, clock: FakeClock):
    await appear(store, clock, "default")
    clock.advance(61)
    await chain(store, 2)


async def test_shards_belong_to_the_queue_that_the_worker_serves(server: RedisServer, clock: FakeClock):
    server.command("FLUSHALL")
    sharded = ShardedRedisStore(server.url(), clock=clock, shards={"default": 4})
    assert isinstance(sharded, Upgrading)
    await sharded.open()
    plain = RedisStore(server.url(), clock=clock)
    await plain.open()
    await appear(plain, clock, "default")
    with pytest.raises(Unsupported, match="serves default"):
        await sharded.refuse_older(["default#3"])
    await plain.close()
    await sharded.close()


async def test_the_workers_are_read_at_most_once_a_minute(store: RedisStore, server: RedisServer):
    server.command("CONFIG", "RESETSTAT")
    for _ in range(5):
        await chain(store, 2)
    assert calls(server, "hvals") == 1


async def test_doctor_names_the_older_worker(store: RedisStore, clock: FakeClock):
    assert [finding for finding in await store.check() if finding.about == "workers"] == []
    await appear(store, clock, "default", "mail")
    [finding] = [finding for finding in await store.check() if finding.about == "workers"]
    assert finding.level == "error"
    assert "old:1 (headrace 0.0.9) serves default, mail" in finding.message


async def test_the_first_step_of_a_job_is_refused_before_it_runs(server: RedisServer):
    server.command("FLUSHALL")
    store = RedisStore(server.url())
    await store.open()
    worker = Presence(
        id=new_worker_id(),
        name="old:1",
        queues=("default",),
        slots=1,
        running=0,
        version="0.0.9",
        started_at=await store.now(),
    )
    far_ahead = int((await store.now()).timestamp() + 3600) * 1_000_000
    key = store.client.keys.workers
    await store.client.wire.command(key, "HSET", key, worker.id.bytes, msgpack.encode((far_ahead, worker)))
    bench, charged = Bench(store), list[int]()

    @bench.app.task(retry=Retry(max_attempts=1))
    async def pay() -> None:
        await step(charged.append, 1)

    job = await bench.work(pay)
    assert job.state is JobState.DEAD
    assert job.history[0].kind.endswith("Unsupported")
    assert charged == []
    await store.close()
