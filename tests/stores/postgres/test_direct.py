"""The call of sync code that bypasses the driver: what it stores, what the server may answer, and when it is not used."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.errors import OutcomeUnknown, StoreError
from headrace.model.job import Batch, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.store.postgres import blocking as module
from headrace.store.postgres.blocking import BlockingEnqueue
from headrace.store.postgres.direct import DirectCall
from headrace.store.postgres.store import PostgresStore
from stores.postgres.kit import a_batch, blocked, take
from stores.postgres.test_faults import proxied
from stores.redis.test_tls import authority
from worker.harness import Tally

LONG = 60


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no silent server."""
    monkeypatch.setattr(module, "_PATIENCE", LONG)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Tally:
    """The calls that bypass the driver."""
    tally, call = Tally(), DirectCall.call

    def counted(self: DirectCall, *args: Any) -> bytes | None:
        tally.count += 1
        return call(self, *args)

    monkeypatch.setattr(DirectCall, "call", counted)
    return tally


@pytest.fixture
def blocking(pg: PostgresStore) -> Iterator[BlockingEnqueue]:
    writer = pg.blocking()
    assert writer is not None
    yield writer
    writer.close()


async def put(blocking: BlockingEnqueue, batch: Batch) -> None:
    assert (await asyncio.to_thread(blocking.enqueue, batch)).existing == {}


@pytest.mark.parametrize(
    "job",
    [
        NewJob("t", b"", Lane()),
        NewJob("tässk", b"\0\xff" * 50, Lane("other", -7, "acme", ("one", "two@3")), options=b"\x80"),
        NewJob("t", bytes(range(256)) * 20_000, Lane(priority=1000)),
    ],
    ids=["plain", "all", "large"],
)
async def test_it_stores_what_the_pool_stores(
    pg: PostgresStore, blocking: BlockingEnqueue, sql: Any, calls: Tally, job: NewJob
):
    batches = [Batch(new_batch(), [job]) for _ in range(2)]
    await put(blocking, batches[0])
    await pg.enqueue(batches[1])
    assert calls.count == 1
    jobs = await pg.get([job_id(batch.id, 0) for batch in batches])
    assert all(jobs)
    for table in ("job", "ready"):
        first, second = [
            [value for name, value in row.items() if name not in {"batch", "seq", "enqueued_at"}]
            for row in await sql.fetch(f"select * from headrace.{table} order by batch")
        ]
        assert first == second
    assert await sql.fetch("select ready, enqueued, queue from headrace.tally") == [(1, 1, job.lane.queue)] * 2


async def test_a_repeated_call_stores_nothing(pg: PostgresStore, blocking: BlockingEnqueue, calls: Tally):
    batch = a_batch()
    for _ in range(3):
        await put(blocking, batch)
    await pg.enqueue(batch)
    assert calls.count == 3
    assert len((await take(pg)).jobs) == 1


async def test_single_jobs_and_others_share_the_connection(pg: PostgresStore, blocking: BlockingEnqueue, calls: Tally):
    for count in (1, 3, 1, 2, 1):
        await put(blocking, a_batch(count))
    assert calls.count == 3
    assert len((await take(pg)).jobs) == 8


async def test_what_the_server_says_besides_is_passed_over(pg: PostgresStore, blocking: BlockingEnqueue, sql: Any):
    await sql.execute(
        "create function talk() returns trigger language plpgsql as"
        " $$ begin raise warning '%', repeat('x', 20000); set datestyle = 'German'; return new; end $$;"
        "create trigger talk before insert on headrace.tally for each row execute function talk()"
    )
    for _ in range(3):
        await put(blocking, a_batch())
    assert len((await take(pg)).jobs) == 3


async def test_a_server_that_refuses_is_asked_by_the_driver_for_the_reason(
    pg: PostgresStore, blocking: BlockingEnqueue, sql: Any
):
    await put(blocking, a_batch())
    await sql.execute("alter table headrace.job add constraint small check (length(payload) < 100) not valid")
    batch = Batch(new_batch(), [NewJob("t", b"x" * 100, Lane())])
    with pytest.raises(StoreError):
        await asyncio.to_thread(blocking.enqueue, batch)
    await sql.execute("alter table headrace.job drop constraint small")
    await put(blocking, batch)
    assert len((await take(pg)).jobs) == 2


async def test_a_statement_that_cannot_be_prepared_is_left_to_the_driver(
    pg: PostgresStore, blocking: BlockingEnqueue, sql: Any
):
    await sql.execute("alter function headrace.enqueue_one rename to gone")
    for _ in range(2):
        await put(blocking, a_batch())
    await sql.execute("alter function headrace.gone rename to enqueue_one")
    await put(blocking, a_batch())
    assert len((await take(pg)).jobs) == 3


async def test_a_lost_answer_is_an_unknown_outcome(url: str, calls: Tally):
    async with proxied(url) as (store, proxy):
        blocking = store.blocking()
        assert blocking is not None
        await put(blocking, a_batch())
        batch = a_batch()
        proxy.only, proxy.cuts = blocking._connection.get_server_pid(), 1
        with pytest.raises(OutcomeUnknown):
            await asyncio.to_thread(blocking.enqueue, batch)
        assert (proxy.lost, calls.count) == (1, 2)
        await store.enqueue(batch)
        await put(blocking, batch)
        assert len((await take(store)).jobs) == 2
        await asyncio.to_thread(blocking.close)


async def test_an_interrupted_call_leaves_no_answer_to_the_next(
    pg: PostgresStore, blocking: BlockingEnqueue, sql: Any, monkeypatch: pytest.MonkeyPatch
):
    await put(blocking, a_batch())
    answer = DirectCall._answer

    def interrupted(self: DirectCall) -> tuple[bytes, bool]:
        raise KeyboardInterrupt

    monkeypatch.setattr(DirectCall, "_answer", interrupted)
    async with sql.transaction():
        await sql.execute("lock table headrace.tally in access exclusive mode")
        calling = asyncio.ensure_future(asyncio.to_thread(_interruptible, blocking, a_batch()))
        assert await calling == "interrupted"
        await blocked(sql)
    monkeypatch.setattr(DirectCall, "_answer", answer)
    batch = a_batch()
    await put(blocking, batch)
    [job] = await pg.get([job_id(batch.id, 0)])
    assert job is not None


def _interruptible(blocking: BlockingEnqueue, batch: Batch) -> str:
    # asyncio would end the program with a KeyboardInterrupt that leaves a thread.
    try:
        blocking.enqueue(batch)
    except KeyboardInterrupt:
        return "interrupted"
    return "stored"


@pytest.fixture
async def encrypted(url: str, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a server that encrypts, as the client sees it."""
    authority(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    parts = urlsplit(url)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readexactly(8)
        if request[4:] != (80877103).to_bytes(4):
            writer.close()  # The driver cancels a statement in plain text, which this server ignores.
            return
        writer.write(b"S")
        await writer.start_tls(context)
        upstream, up = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(relay(reader, up), relay(upstream, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield url.replace(f":{parts.port}/", f":{port}/") + "?sslmode=require"
    server.close()


async def test_an_encrypted_connection_is_left_to_the_driver(encrypted: str, calls: Tally):
    store = PostgresStore(encrypted)
    await store.open()
    blocking = store.blocking()
    assert blocking is not None
    for _ in range(2):
        await put(blocking, a_batch())
    assert len((await take(store)).jobs) == 2
    assert calls.count == 0
    await asyncio.to_thread(blocking.close)
    await store.close()
