"""The relay: every row once and in its order, however many relay; a row that cannot go stops no other."""

from __future__ import annotations

import asyncio
import collections
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from headrace.errors import QueueFull, StoreError, Unavailable
from headrace.model.job import Batch, BatchId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import Enqueued
from headrace.outbox import TABLE, Outbox, relay
from headrace.outbox.table import RELAY
from headrace.store.memory import MemoryStore
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer

POLL = timedelta(milliseconds=1)


def batch(payload: bytes = b"p", queue: str = "billing", tenant: str = "") -> Batch:
    return Batch(new_batch(), [NewJob("t", payload, Lane(queue, 0, tenant))])


@pytest.fixture
async def outbox(business: str) -> Outbox:
    box = Outbox(business)
    await box.prepare()
    return box


@pytest.fixture
async def redis_store(valkey_server: RedisServer) -> AsyncIterator[RedisStore]:
    valkey_server.command("FLUSHALL")
    store = RedisStore(valkey_server.url())
    await store.open()
    yield store
    await store.close()


def written(outbox: Outbox, user: Any, batches: list[Batch]) -> list[Batch]:
    for each in batches:
        outbox.enqueue_in(user, each)
    user.commit()
    return batches


class Noting(MemoryStore):
    """Notes what it is given, by lane, and answers on a later turn of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.given = collections.Counter[BatchId]()
        self.by_lane: dict[str, list[bytes]] = collections.defaultdict(list)
        self.at_once = self.most_at_once = 0

    async def enqueue(self, batch: Batch) -> Enqueued:
        self.given[batch.id] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.by_lane[batch.jobs[0].lane.tenant].append(batch.jobs[0].payload)
        return await super().enqueue(batch)


async def test_many_may_prepare_at_once(business: str, user: Any):
    await asyncio.gather(*(Outbox(business).prepare() for _ in range(8)))
    [made] = written(Outbox(business), user, [batch()])
    store = Noting()
    assert await Outbox(business).relay(store) == 1
    assert store.given == {made.id: 1}


# ── once, and in order ───────────────────────────────────────────────────────


async def test_three_relays_hand_over_each_row_once_and_in_the_order_of_its_lane(
    outbox: Outbox, business: str, user: Any
):
    store, stop = Noting(), asyncio.Event()
    rows = written(outbox, user, [batch(b"%04d" % n, tenant=f"t{n % 7}") for n in range(2 * relay.ROWS)])
    relays = [asyncio.create_task(Outbox(business).run(store, poll=POLL, stop=stop)) for _ in range(3)]
    while (await outbox.depth()).waiting:
        assert not any(relay.done() for relay in relays)
    stop.set()
    await asyncio.gather(*relays)
    assert store.given == {row.id: 1 for row in rows}
    assert len(store.by_lane) == 7
    assert all(line == sorted(line) for line in store.by_lane.values())
    assert store.most_at_once == 7


async def test_two_lanes_that_a_row_shares_keep_their_order(outbox: Outbox, user: Any):
    store = Noting()
    first, second = batch(b"1", tenant="a"), batch(b"2", tenant="b")
    both = Batch(new_batch(), [*first.jobs, *second.jobs])
    last = batch(b"4", tenant="b")
    written(outbox, user, [first, second, both, last])
    assert await outbox.relay(store) == 4
    assert list(store.given)[-2:] == [both.id, last.id]


async def test_a_relay_has_one_connection_and_a_few_statements_a_round(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, store: MemoryStore
):
    opened: list[Any] = []
    asked: list[str] = []
    connect: Callable[..., Any] = asyncpg.connect

    async def counted(*args: Any, **options: Any) -> Any:
        connection = await connect(*args, **options)
        opened.append(connection)
        connection.add_query_logger(lambda record: asked.append(record.query))
        return connection

    outbox = Outbox(postgres_url)
    await outbox.prepare()
    connection = await connect(postgres_url)
    async with connection.transaction():
        for n in range(300):
            await outbox.aenqueue_in(connection, batch(b"%d" % n))
    await connection.close()
    monkeypatch.setattr(asyncpg, "connect", counted)
    assert await outbox.relay(store) == 300
    assert len(opened) == 1
    assert len(asked) < 15


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Slow(MemoryStore):
    """Keeps a call waiting until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def enqueue(self, batch: Batch) -> Enqueued:
        self.asked.set()
        await self.go.wait()
        return await super().enqueue(batch)


async def test_nobody_waits_for_a_relay_that_waits_for_the_store(outbox: Outbox, business: str, user: Any):
    """The user's writers wait for no lock, and other relays have nothing to do meanwhile."""
    user.execute("pragma busy_timeout = 0" if business.startswith("sqlite") else "set lock_timeout = 1")
    slow = Slow()
    written(outbox, user, [batch(b"first")])
    waiting = asyncio.create_task(outbox.relay(slow))
    await slow.asked.wait()
    written(outbox, user, [batch(b"second")])
    noting = Noting()
    assert await Outbox(business).relay(noting) == 0
    assert not noting.given
    slow.go.set()
    assert await waiting == 1
    assert await Outbox(business).relay(noting) == 1


async def test_a_row_that_somebody_has_locked_is_left_for_later(postgres_url: str, store: MemoryStore):
    outbox = Outbox(postgres_url)
    await outbox.prepare()
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        for n in range(3):
            await outbox.aenqueue_in(connection, batch(b"%d" % n))
    async with connection.transaction():
        await connection.execute(f"select from {TABLE} order by batch limit 2 for update")
        assert await outbox.relay(store, limit=2) == 1
        assert (await outbox.depth()).waiting == 2
    assert await outbox.relay(store) == 2
    await connection.close()


async def test_a_relay_that_is_called_off_deletes_what_it_has_moved(outbox: Outbox, user: Any):
    class Second(Slow):
        async def enqueue(self, batch: Batch) -> Enqueued:
            if batch.jobs[0].payload == b"1":
                return await MemoryStore.enqueue(self, batch)
            return await super().enqueue(batch)

    store = Second()
    written(outbox, user, [batch(b"1"), batch(b"2")])
    relaying = asyncio.create_task(outbox.run(store))
    await store.asked.wait()
    relaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying
    assert (await outbox.depth()).waiting == 1
    store.go.set()
    assert await outbox.relay(store) == 1


async def test_what_was_moved_before_an_outage_is_deleted(outbox: Outbox, user: Any):
    class Failing(MemoryStore):
        async def enqueue(self, batch: Batch) -> Enqueued:
            if batch.jobs[0].payload == b"2":
                raise Unavailable("down")
            return await super().enqueue(batch)

    written(outbox, user, [batch(b"1"), batch(b"2"), batch(b"3")])
    with pytest.raises(Unavailable):
        await outbox.relay(Failing())
    assert (await outbox.depth()).waiting == 2


async def test_a_sqlite_relay_that_died_is_followed_when_its_time_is_up(file: str, store: MemoryStore):
    outbox = Outbox(f"sqlite:///{file}")
    await outbox.prepare()
    user = sqlite3.connect(file)
    written(outbox, user, [batch()])
    user.execute(f"insert into {RELAY} values (1, 'dead', julianday('now') + 1)")
    user.commit()
    assert await outbox.relay(store) == 0
    user.execute(f"update {RELAY} set until = julianday('now')")
    user.commit()
    assert await outbox.relay(store) == 1
    assert user.execute(f"select count(*) from {RELAY}").fetchone() == (0,)
    user.close()


async def test_rows_of_many_megabytes_are_read_a_few_at_a_time(
    outbox: Outbox, user: Any, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay, "_BYTES", 3000)
    written(outbox, user, [batch(b"x" * size) for size in (1000, 1000, 5000, 10, 10)])
    assert [await outbox.relay(store) for _ in range(4)] == [2, 1, 2, 0]


# ── rows that cannot go ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("id", "jobs"),
    [
        ("0" * 32, b"\x91\x9a\xa1t\xc4\x00\xa1q\x00\xa0\x90\xc0\xc0\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc0"),
        ("0" * 32, b"\xc1"),
        ("0" * 32, b""),
        ("0" * 32, b"\x91\x91\x01"),
        ("no id at all", b"\x90"),
    ],
)
async def test_a_row_that_cannot_be_read_is_refused_and_stops_nobody(
    outbox: Outbox, user: Any, redis_store: RedisStore, caplog: pytest.LogCaptureFixture, id: str, jobs: bytes
):
    mark = "?" if "sqlite3" in type(user).__module__ else "%s"
    user.execute(f"insert into {TABLE} (batch, jobs) values ({mark}, {mark})", (id, jobs))
    [good] = written(outbox, user, [batch(b"good")])
    stop = asyncio.Event()
    relaying = asyncio.create_task(outbox.run(redis_store, poll=POLL, stop=stop))
    while (await outbox.depth()).waiting:
        assert not relaying.done()
    stop.set()
    await relaying
    assert (await redis_store.get([job_id(good.id, 0)]))[0] is not None
    depth = await outbox.depth()
    assert (depth.waiting, depth.refused) == (0, 1)
    [(why,)] = user.execute(f"select refused from {TABLE}").fetchall()
    user.commit()
    assert "cannot be read" in why
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1


async def test_a_row_without_jobs_goes(outbox: Outbox, user: Any, store: MemoryStore):
    mark = "?" if "sqlite3" in type(user).__module__ else "%s"
    user.execute(f"insert into {TABLE} (batch, jobs) values ({mark}, {mark})", (new_batch().hex, b"\x90"))
    user.commit()
    assert await outbox.relay(store) == 1
    assert (await outbox.depth()).waiting == 0


async def test_a_row_that_the_store_does_not_take_stops_nobody(
    outbox: Outbox,
    user: Any,
    redis_store: RedisStore,
    valkey_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
):
    # A foreign key is in place of the queue's lane, so the server refuses each job for it.
    valkey_server.command("SET", "hr:{broken}:L:0||", "not ours")
    bad, good = written(outbox, user, [batch(b"bad", "broken"), batch(b"good")])
    stop = asyncio.Event()
    relaying = asyncio.create_task(outbox.run(redis_store, poll=POLL, stop=stop))
    while (await outbox.depth()).waiting != 1:
        assert not relaying.done()
    assert (await redis_store.get([job_id(good.id, 0)]))[0] is not None
    valkey_server.command("DEL", "hr:{broken}:L:0||")
    while (await outbox.depth()).waiting:
        assert not relaying.done()
    stop.set()
    await relaying
    assert (await redis_store.get([job_id(bad.id, 0)]))[0] is not None
    assert len([record for record in caplog.records if "queue broken wait" in record.message]) == 1
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("error", [StoreError("ERR it does not like this one"), KeyError("oops")])
async def test_what_is_wrong_with_one_row_is_about_that_row(
    outbox: Outbox, user: Any, caplog: pytest.LogCaptureFixture, error: Exception
):
    class Picky(Noting):
        good = True

        async def enqueue(self, batch: Batch) -> Enqueued:
            if batch.jobs[0].payload == b"bad" and self.good:
                self.given[batch.id] += 1
                raise error
            return await super().enqueue(batch)

    store, stop = Picky(), asyncio.Event()
    bad, good = written(outbox, user, [batch(b"bad"), batch(b"good")])
    relaying = asyncio.create_task(outbox.run(store, poll=POLL, stop=stop))
    while store.given[bad.id] < 2 or not store.given[good.id]:
        assert (await outbox.depth()).refused == 0
    [late] = written(outbox, user, [batch(b"late")])
    while not store.given[late.id]:
        assert (await outbox.depth()).waiting
    store.good = False
    while (await outbox.depth()).waiting:
        assert not relaying.done()
    stop.set()
    await relaying
    assert store.by_lane[""] == [b"good", b"late", b"bad"]
    told = [record for record in caplog.records if "does not accept" in record.message]
    assert len(told) == 1
    assert type(error).__name__ in told[0].message


async def test_a_queue_that_is_full_is_asked_again_later_and_the_others_go_on(outbox: Outbox, user: Any):
    class Full(Noting):
        full = True

        async def enqueue(self, batch: Batch) -> Enqueued:
            if self.full and batch.jobs[0].lane.queue == "full":
                self.given[batch.id] += 1
                raise QueueFull("full", 10)
            return await super().enqueue(batch)

    store = Full()
    waiting = written(outbox, user, [batch(b"%d" % n, "full") for n in range(5)])
    written(outbox, user, [batch(b"other")])
    # More of them than a round takes; one is enough to know.
    assert await outbox.relay(store, limit=2) == 1
    assert [store.given[each.id] for each in waiting] == [1, 0, 0, 0, 0]
    depth = await outbox.depth()
    assert (depth.waiting, depth.refused) == (5, 0)
    store.full = False
    assert await outbox.relay(store) == 5
    assert store.by_lane[""] == [b"other", b"0", b"1", b"2", b"3", b"4"]


async def test_a_right_that_is_missing_is_told_and_tried_again(
    outbox: Outbox, user: Any, redis_store: RedisStore, valkey_server: RedisServer, caplog: pytest.LogCaptureFixture
):
    valkey_server.command("ACL", "SETUSER", "clerk", "on", ">s3cret", "~*", "&*", "+@all")
    store = RedisStore(f"redis://clerk:s3cret@127.0.0.1:{valkey_server.port}/0")
    await store.open()
    valkey_server.command("ACL", "SETUSER", "clerk", "-evalsha")
    [row] = written(outbox, user, [batch()])
    assert await outbox.relay(store) == 0
    stop = asyncio.Event()
    relaying = asyncio.create_task(outbox.run(store, poll=POLL, stop=stop))
    while caplog.text.count("queue billing wait") < 2:
        assert (await outbox.depth()).waiting == 1
    assert "evalsha" in caplog.text
    valkey_server.command("ACL", "SETUSER", "clerk", "+evalsha")
    while (await redis_store.get([job_id(row.id, 0)]))[0] is None:
        assert not relaying.done()
    stop.set()
    await relaying
    await store.close()
    valkey_server.command("ACL", "DELUSER", "clerk")
    assert "s3cret" not in caplog.text


async def test_a_user_who_blocks_the_event_loop_does_not_wait_for_a_relay_in_it(outbox: Outbox, user: Any):
    """A lock held from one turn of the loop to the next would be held for as long as the user waits for it."""
    store, stop = Noting(), asyncio.Event()
    relaying = asyncio.create_task(outbox.run(store, poll=POLL, stop=stop))
    for number in range(200):
        written(outbox, user, [batch(b"%d" % number)])
        await asyncio.sleep(0)
    while (await outbox.depth()).waiting:
        assert not relaying.done()
    stop.set()
    await relaying
    assert sum(store.given.values()) == 200
