"""Faults: connections that break at the worst moment, servers that go and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.errors import OutcomeUnknown, StoreError, Unavailable
from headrace.model.job import JobState, job_id
from headrace.model.outcome import DONE
from headrace.store.postgres.store import PostgresStore
from servers.postgres import PostgresServer
from stores.postgres.kit import a_batch, claim, put, take


class Proxy:
    """Between store and server: cuts the line when the server's answer to a call has been made but not delivered."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self.cuts = 0
        """How many more answers get lost."""
        self.only: int | None = None
        """The server process whose answers get lost. None: any, so also those to a wake-up that is under way."""
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, up = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up}
        answers = asyncio.create_task(self._answers(upstream, writer))
        try:
            while data := await reader.read(65536):
                up.write(data)
                await up.drain()
        except OSError:
            pass
        finally:
            up.close()
            await answers

    async def _answers(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = None
        try:
            while data := await upstream.read(65536):
                # 'K' + length + process + secret: the server's greeting.
                if pid is None and (key := data.find(b"K\x00\x00\x00\x0c")) >= 0:
                    pid = int.from_bytes(data[key + 5 : key + 9])
                # 'C' + length + "SELECT n": the statement (and with it its transaction) is over.
                if self.cuts and b"SELECT " in data and self.only in {None, pid}:
                    self.cuts -= 1
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def proxied(url: str) -> AsyncGenerator[tuple[PostgresStore, Proxy]]:
    parts = urlsplit(url)
    proxy = Proxy(parts.hostname or "", parts.port or 0)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = PostgresStore(url.replace(f":{parts.port}/", f":{port}/"))
    await store.open()
    try:
        yield store, proxy
    finally:
        await store.close()
        server.close()
        await server.wait_closed()


@pytest.fixture
async def cut(url: str) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    async with proxied(url) as both:
        yield both


async def test_an_enqueue_whose_answer_is_lost_is_one_batch(cut: tuple[PostgresStore, Proxy]):
    store, proxy = cut
    batch = a_batch(3)
    proxy.cuts = 1
    await store.enqueue(batch)
    assert proxy.lost == 1
    assert [job.ord for job in (await take(store)).jobs] == [0, 1, 2]


async def test_an_enqueue_that_breaks_twice_says_that_nobody_knows(cut: tuple[PostgresStore, Proxy]):
    store, proxy = cut
    batch = a_batch()
    proxy.cuts = 2
    with pytest.raises(OutcomeUnknown):
        await store.enqueue(batch)
    await store.enqueue(batch)
    assert len((await take(store)).jobs) == 1


async def test_a_claim_whose_answer_is_lost_is_found_again(cut: tuple[PostgresStore, Proxy]):
    store, proxy = cut
    ids = await put(store, 5)
    proxy.cuts = 1
    lease = await take(store, 3)
    assert proxy.lost == 1
    assert [job.id for job in lease.jobs] == ids[:3]
    assert await store.settle(lease.token, [(n, DONE) for n in range(3)]) == frozenset()
    assert [job.id for job in (await take(store)).jobs] == ids[3:]


async def test_a_settle_whose_answer_is_lost_is_settled_once(cut: tuple[PostgresStore, Proxy]):
    store, proxy = cut
    ids = await put(store, 3)
    lease = await take(store)
    proxy.cuts = 1
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    proxy.cuts = 1
    with pytest.raises(OutcomeUnknown):
        # The lease ended with it, so a second try cannot distinguish its own success from another worker's.
        await store.settle(lease.token, [(1, DONE), (2, DONE)])
    assert [job and job.state for job in await store.get(ids)] == [JobState.DONE] * 3
    [queue] = (await store.stats()).queues
    assert (queue.running, queue.done_total) == (0, 3)


async def test_a_read_is_read_again(cut: tuple[PostgresStore, Proxy]):
    store, proxy = cut
    ids = await put(store)
    proxy.cuts = 1
    assert (await store.stats()).queues[0].ready == 1
    proxy.cuts = 1
    assert [job and job.id for job in await store.get(ids)] == ids
    assert proxy.lost == 2


async def test_terminated_backends_are_replaced(pg: PostgresStore, sql: Any):
    await put(pg, 50)
    for _ in range(5):
        await sql.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        lease = await take(pg, 10)
        assert await pg.settle(lease.token, [(n, DONE) for n in range(10)]) == frozenset()
    assert (await pg.stats()).queues[0].done_total == 50


async def test_a_lock_held_too_long_is_not_a_broken_connection(pg: PostgresStore, sql: Any):
    async with sql.transaction():
        await sql.execute("lock table headrace.pause in access exclusive mode")
        waiting = asyncio.create_task(pg.pause("default"))
        await asyncio.sleep(0)
    await waiting
    assert (await pg.stats()).queues[0].paused


async def test_cancelled_calls_leave_a_usable_pool(pg: PostgresStore, sql: Any):
    await put(pg, 3)
    async with sql.transaction():
        await sql.execute("lock table headrace.ready in access exclusive mode")
        calls = [asyncio.create_task(claim(pg)) for _ in range(8)]
        done, _ = await asyncio.wait(calls, timeout=0.2)
        assert not done
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    # If those calls still claimed jobs on the server, no worker holds their leases, and they expire.
    await pg.enqueue(a_batch())
    assert (await pg.stats()).queues[0].enqueued_total == 4


async def test_a_server_that_crashes_and_comes_back():
    """Acknowledged writes are kept, and the same store object works again."""
    with PostgresServer.start() as server:
        store = PostgresStore(server.create_database())
        await store.migrate()
        await store.open()
        ids = await put(store, 3)
        lease = await take(store, 2)
        assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
        server.crash()
        with pytest.raises(Unavailable):
            await claim(store)
        with pytest.raises(StoreError):
            await store.enqueue(a_batch())
        server.restart()
        states = [job.state for job in await store.get(ids) if job]
        assert states == [JobState.DONE, JobState.RUNNING, JobState.READY]
        assert await store.settle(lease.token, [(1, DONE)]) == frozenset()
        assert [job.id for job in (await take(store)).jobs] == ids[2:]
        await store.close()


async def test_a_store_that_is_closed_says_so(pg: PostgresStore):
    await pg.close()
    await pg.close()
    with pytest.raises(Unavailable, match="closed"):
        await pg.enqueue(a_batch())


async def test_more_calls_than_connections(pg: PostgresStore):
    batches = [a_batch() for _ in range(40)]
    await asyncio.gather(*[pg.enqueue(batch) for batch in batches])
    taken = await asyncio.gather(*[claim(pg, 2) for _ in range(40)])
    jobs = [job.id for lease in taken if lease for job in lease.jobs]
    assert sorted(jobs) == sorted(job_id(batch.id, 0) for batch in batches)
