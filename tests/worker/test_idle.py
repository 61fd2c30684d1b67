"""An idle worker asks its store rarely, and hears nevertheless of all that it has to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from msgspec.structs import replace

from conftest import opened
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Presence, Pulse, new_token, new_worker_id
from headrace.model.outcome import Again
from headrace.store import connect
from headrace.store.contract import Hinting, Store
from headrace.store.memory import MemoryStore
from headrace.store.postgres.driver import asyncpg
from headrace.store.redis.sharded import ShardedRedisStore
from worker.harness import WAIT, Bench, Tally, until

KINDS = ("memory", "postgres", "redis")
NEVER = timedelta(days=1)
QUIET = {"poll": NEVER, "reap": NEVER, "lease": NEVER, "heartbeat": timedelta(seconds=1)}
"""Settings of a worker that does nothing in time unless it hears a hint."""
SPEED = 50
"""How many times shorter the intervals of the first test are than the defaults."""
BEATS = 20


@pytest.fixture(params=KINDS)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def stores(store_name: str, store_url: str) -> AsyncGenerator[list[Store]]:
    """Two store objects for the same jobs, as two processes have them. The memory store is one object."""
    if store_name == "memory":
        memory = MemoryStore()
        yield [memory, memory]
        return
    async with opened(connect(store_url)) as store, opened(connect(store_url)) as other:
        yield [store, other]


class Counted:
    """Counts the calls that reach the store's server. A call that only waits is none."""

    def __init__(self, store: Store) -> None:
        self._inner = store
        self.calls: Counter[str] = Counter()
        self.beats = Tally()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name == "heartbeat":
                self.beats.add()
            return found(*args, **kwargs)

        return call


async def test_a_lone_idle_worker_makes_less_than_one_call_a_second(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.worker.janitor.PRUNE_EVERY", 60.0 / SPEED)
    monkeypatch.setattr("headrace.worker.janitor.LISTEN", 30.0 / SPEED)
    monkeypatch.setattr("headrace.worker.ticker.IDLE_POLL", 10.0 / SPEED)
    # The worker also reaps when `promote` is late. A tenth of a second is not late on a slow machine.
    monkeypatch.setattr("headrace.worker.janitor.REAP_SELDOM", 5 * SPEED)
    # A heartbeat waits for an answer for a part of the lease, so the lease is not shortened. Half of a lease that is 50 times
    # shorter would be the interval of `promote`.
    monkeypatch.setattr("headrace.worker.janitor.PROMOTE_HEARING", 7.5)
    counted = Counted(stores[0])
    bench = Bench(
        cast("Store", counted),
        lease=timedelta(seconds=15),
        heartbeat=timedelta(seconds=5) / SPEED,
        poll=timedelta(seconds=1) / SPEED,
        reap=timedelta(seconds=1) / SPEED,
    )

    @bench.app.task(name="never")
    async def _never() -> None: ...

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        await until(lambda: cast("Hinting", stores[0]).hears)
        await counted.beats.reach(counted.beats.count + 3)
        counted.calls.clear()
        await counted.beats.reach(counted.beats.count + BEATS)
        calls = counted.calls
    # A heartbeat comes about every 4.5 of the seconds that a worker with the default settings counts.
    assert calls["heartbeat"] == BEATS
    assert calls["now"] == 0
    assert calls["reap"] == 0
    # Heartbeats tell that there is nothing to claim.
    assert calls["claim"] + calls["wait_to_claim"] <= 4
    assert calls.total() - calls["wait"] - calls["wait_due"] <= 3.5 * BEATS, calls


class Elsewhere(Counted):
    """Other workers do the upkeep, until `here` is set."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.here = False

    async def heartbeat(self, *args: Any) -> Pulse:
        pulse = await self._inner.heartbeat(*args)
        self.calls["heartbeat"] += 1
        self.beats.add()
        return replace(pulse, upkeep=self.here)


async def test_an_idle_worker_without_upkeep_sends_its_heartbeats_and_hardly_more(stores: list[Store]):
    elsewhere = Elsewhere(stores[0])
    bench = Bench(cast("Store", elsewhere), heartbeat=timedelta(milliseconds=20), poll=timedelta(seconds=1))

    @bench.app.task(name="never")
    async def _never() -> None: ...

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        await until(lambda: cast("Hinting", stores[0]).hears)
        await elsewhere.beats.reach(elsewhere.beats.count + 3)
        elsewhere.calls.clear()
        await elsewhere.beats.reach(elsewhere.beats.count + BEATS)
        calls = elsewhere.calls.copy()
    assert calls["heartbeat"] == BEATS
    # It listens once more if it fell asleep before it knew that others do the upkeep.
    assert calls.total() - BEATS <= 2, calls


@asynccontextmanager
async def quiet_worker(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[Bench, asyncio.Event]]:
    """A worker that has gone to sleep, and an event that its task `work` sets."""
    monkeypatch.setattr("headrace.worker.janitor.PROMOTE_AT_LEAST", NEVER.total_seconds())
    bench = Bench(stores[0], **QUIET)
    ran = asyncio.Event()

    @bench.app.task(name="work")
    async def _work() -> None:
        ran.set()

    async with bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        await until(lambda: cast("Hinting", stores[0]).hears)
        yield bench, ran


def delayed(due: timedelta | datetime, task: str = "work") -> Batch:
    return Batch(new_batch(), [NewJob(task, b"\x92\x90\x80", Lane(), due=due)])


@pytest.mark.parametrize("absolute", [False, True], ids=["after", "at"])
async def test_a_delayed_job_of_another_process_runs_without_a_poll(
    stores: list[Store], absolute: bool, monkeypatch: pytest.MonkeyPatch
):
    async with quiet_worker(stores, monkeypatch) as (_, ran):
        # The first is due later than the second. The worker has to learn of the earlier time.
        await stores[1].enqueue(delayed(timedelta(seconds=50), "later"))
        after = timedelta(milliseconds=200)
        await stores[1].enqueue(delayed(datetime.now(UTC) + after if absolute else after))
        await ran.wait()


async def test_a_job_that_another_worker_puts_off_runs_without_a_poll(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
):
    async with quiet_worker(stores, monkeypatch) as (_, ran):
        batch = Batch(new_batch(), [NewJob("work", b"\x92\x90\x80", Lane(queue="other"))])
        await stores[1].enqueue(batch)
        lease = await stores[1].claim(Ask(new_worker_id(), ("other",), 1, NEVER, new_token()))
        assert lease is not None
        await stores[1].settle(lease.token, [(0, Again(1, 0, due=timedelta(milliseconds=100)))])
        await until_ready(stores[1], batch)
        assert not ran.is_set()


async def until_ready(store: Store, batch: Batch) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            [job] = await store.get([job_id(batch.id, 0)])
            assert job is not None
            if job.state is JobState.READY:
                return
            await asyncio.sleep(0.01)


async def test_the_leases_of_a_worker_that_died_are_reaped_without_a_poll(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
):
    async with quiet_worker(stores, monkeypatch) as (_, ran):
        batch = Batch(new_batch(), [NewJob("work", b"\x92\x90\x80", Lane(queue="other"))])
        await stores[1].enqueue(batch)
        dead = new_worker_id()
        assert await stores[1].claim(Ask(dead, ("other",), 1, NEVER, new_token())) is not None
        assert await stores[1].abandon(dead, "killed") == 1
        await until_ready(stores[1], batch)
        assert not ran.is_set()


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No poll of an idle worker that does no upkeep finds a job."""
    monkeypatch.setattr("headrace.worker.polls.RARELY", 1e9)


@asynccontextmanager
async def lost_hint(url: str) -> AsyncGenerator[asyncio.Task[Any]]:
    """The next hint about a job goes to a worker that dies before it claims."""
    async with opened(connect(url)) as dead, opened(connect(url)) as watch:
        client = cast("ShardedRedisStore", dead).store.client
        wire = cast("ShardedRedisStore", watch).store.client.wire
        marker = client.keys.marker("default")
        pool = await client.wire.pool_of(marker)
        [id] = await pool.ask([("CLIENT", "ID")])
        # The pool gives the same connection again. The server serves the client first that has waited longest.
        hint = asyncio.create_task(pool.block([("BLPOP", marker, "0")], NEVER.total_seconds()))
        async with asyncio.timeout(WAIT):
            while b"flags=b" not in await wire.command(marker, "CLIENT", "LIST", "ID", id):  # noqa: ASYNC110 - asks a server
                await asyncio.sleep(0.01)
            yield hint
            assert (await hint)[0][0] == marker.encode()


JOB = NewJob("work", b"\x92\x90\x80", Lane())


@pytest.mark.parametrize("store_name", ["redis"], indirect=True)
@pytest.mark.usefixtures("no_polls")
async def test_a_lost_hint_is_repeated_by_busy_workers_that_do_the_upkeep(stores: list[Store], store_url: str):
    end, held, ran = asyncio.Event(), asyncio.Event(), asyncio.Event()
    busy = Bench(stores[0], concurrency=1, poll=timedelta(milliseconds=20))
    idle = Bench(cast("Store", Elsewhere(stores[1])), poll=timedelta(seconds=1))

    @busy.app.task(name="work")
    async def _hold() -> None:
        held.set()
        await end.wait()

    @idle.app.task(name="work")
    async def _work() -> None:
        ran.set()

    async with busy.worker(), asyncio.timeout(WAIT):
        await stores[1].enqueue(Batch(new_batch(), [JOB]))
        await held.wait()
        async with lost_hint(store_url), idle.worker() as worker:
            await worker.idle.wait()
            await until(lambda: not worker._state.upkeep)
            await stores[1].enqueue(Batch(new_batch(), [JOB]))
            await ran.wait()
        end.set()


@pytest.mark.parametrize("store_name", ["redis"], indirect=True)
@pytest.mark.usefixtures("no_polls")
async def test_a_heartbeat_makes_up_for_a_lost_hint(stores: list[Store], store_url: str):
    ran = asyncio.Event()
    bench = Bench(stores[0], poll=timedelta(days=1), heartbeat=timedelta(milliseconds=20))

    @bench.app.task(name="work")
    async def _work() -> None:
        ran.set()

    async with lost_hint(store_url), bench.worker() as worker, asyncio.timeout(WAIT):
        await worker.idle.wait()
        await until(lambda: worker._state.ready_known)
        await stores[1].enqueue(Batch(new_batch(), [JOB]))
        await ran.wait()


@pytest.mark.parametrize("store_name", ["redis"], indirect=True)
async def test_a_heartbeat_of_an_idle_worker_is_few_commands(stores: list[Store]):
    """The server counts those of scripts, too."""
    redis = cast("ShardedRedisStore", stores[0])
    wire = redis.store.client.wire
    presence = Presence(
        id=new_worker_id(),
        name="idle",
        queues=("default", "mail"),
        slots=1,
        running=0,
        version="1",
        started_at=datetime.now(UTC),
        upkeep="group",
    )

    async def commands() -> int:
        said = await wire.command("", "INFO", "stats")
        [line] = (line for line in said.splitlines() if line.startswith(b"total_commands_processed:"))
        return int(line.partition(b":")[2])

    for _ in range(2):
        assert (await redis.heartbeat([], timedelta(seconds=15), presence)).ready is False
    before = await commands()
    await redis.heartbeat([], timedelta(seconds=15), presence)
    assert await commands() - before == 1 + 6  # the look itself; EVALSHA, TIME, HSET, EXISTS, ZSCORE, ZADD
    before = await commands()
    ask = Ask(presence.id, ("default",), 1, timedelta(seconds=15), new_token())
    assert await redis.claim(ask) is None
    assert await commands() - before == 1 + 5  # EVALSHA, EXISTS, ZRANGE, HGET, DEL


@pytest.mark.parametrize("store_name", ["redis"], indirect=True)
@pytest.mark.usefixtures("no_polls")
async def test_a_worker_that_begins_to_do_the_upkeep_makes_up_for_a_lost_hint(stores: list[Store], store_url: str):
    elsewhere, ran = Elsewhere(stores[0]), asyncio.Event()
    bench = Bench(cast("Store", elsewhere), poll=timedelta(seconds=1))

    @bench.app.task(name="work")
    async def _work() -> None:
        ran.set()

    async with lost_hint(store_url), bench.worker() as worker:
        await worker.idle.wait()
        await until(lambda: not worker._state.upkeep)
        await stores[1].enqueue(Batch(new_batch(), [JOB]))
        elsewhere.here = True
        await ran.wait()


@pytest.mark.parametrize("store_name", ["postgres"], indirect=True)
async def test_a_delayed_job_from_sql_runs_without_a_poll(
    stores: list[Store], store_url: str, monkeypatch: pytest.MonkeyPatch
):
    connection = await asyncpg.connect(store_url)
    try:
        async with quiet_worker(stores, monkeypatch) as (_, ran):
            await connection.execute("select headrace.enqueue('work', delay => '200 milliseconds')")
            await ran.wait()
    finally:
        await connection.close()


async def test_a_lease_is_reaped_when_it_expires(stores: list[Store], monkeypatch: pytest.MonkeyPatch):
    """The worker learns from `promote` when the first lease expires. It does not look in between."""
    first = Batch(new_batch(), [NewJob("work", b"\x92\x90\x80", Lane(queue="other"))])
    await stores[1].enqueue(first)
    assert await stores[1].claim(Ask(new_worker_id(), ("other",), 1, timedelta(seconds=1), new_token())) is not None
    async with quiet_worker(stores, monkeypatch):
        await until_ready(stores[1], first)
