"""A worker whose ClickHouse is away: its jobs go on, it logs that once, and the rows follow later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.kit import put, run_one
from headrace.errors import Unavailable
from headrace.model.job import FINISHED
from headrace.sink import clickhouse
from headrace.sink import sink as sinks
from headrace.sink.address import parse
from headrace.sink.clickhouse import ClickHouse
from headrace.store.memory import MemoryStore
from server.test_tls import authority, certificate
from servers.clickhouse import ClickHouseServer
from sink.kit import Table, holding
from worker.harness import WAIT, Bench, until


@pytest.fixture
def own() -> Iterator[ClickHouseServer]:
    """A server that a test may stop."""
    with ClickHouseServer.start() as server:
        yield server


async def until_rows(table: Table, count: int) -> None:
    async with asyncio.timeout(WAIT):
        while True:
            try:
                if await asyncio.to_thread(lambda: len(table.ids())) == count:
                    return
            except Unavailable:
                pass  # The table is not there yet.
            await asyncio.sleep(0.02)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "history sink" in record.getMessage()]


async def test_jobs_go_on_while_clickhouse_is_away(
    own: ClickHouseServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sinks, "EVERY", 0.05)
    caplog.set_level(logging.INFO, "headrace")
    bench = Bench(history_url=own.url())
    table = Table(own, "headrace_ends", own.url())

    @bench.app.task(name="quick")
    async def quick(number: int) -> None:
        pass

    async def run(count: int) -> None:
        for id in await bench.enqueue_many(quick, [(number,) for number in range(count)]):
            await bench.reach(id, *FINISHED)

    async with bench.worker():
        await run(5)
        await until_rows(table, 5)
        own.crash()
        await run(10)
        await until(lambda: lines(caplog))
        await run(10)
        own.restart()
        await until_rows(table, 25)
        await until(lambda: len(lines(caplog)) == 2)
    away, back = lines(caplog)
    assert "upkeep (history sink) failed" in away
    assert f"127.0.0.1:{own.port}/default.headrace_ends cannot be reached" in away
    assert "upkeep (history sink) works again" in back
    assert own.password not in caplog.text


async def test_a_clickhouse_that_never_answers_holds_no_worker(clickhouse: ClickHouseServer, table: Table):
    async with holding(clickhouse) as proxy:
        proxy.answers = 0
        bench = Bench(history_url=clickhouse.url(port=proxy.port, table=table.name))

        @bench.app.task(name="quick")
        async def quick(number: int) -> None:
            pass

        async with bench.worker():
            await bench.reach(await bench.enqueue(quick, 1), *FINISHED)
            async with asyncio.timeout(WAIT):
                await proxy.held.wait()
            for id in await bench.enqueue_many(quick, [(number,) for number in range(50)]):
                await bench.reach(id, *FINISHED)
        # The worker has stopped without waiting for ClickHouse.
        proxy.answers = -1
    await Table(clickhouse, table.name, table.url).sink(bench.store).drain()
    assert len(table.ids()) == 51


async def test_a_remote_worker_leaves_it_to_the_server(clickhouse: ClickHouseServer, table: Table):
    bench = Bench(history_url=table.url, url="http://127.0.0.1:1")
    async with bench.worker() as worker:
        assert "history sink" not in {chore.name for chore in worker._janitor.chores}


async def test_a_batch_that_waits_is_not_read_again(own: ClickHouseServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sinks, "BATCH", 20)
    monkeypatch.setattr(sinks, "PAGE", 10)
    store, table = MemoryStore(), Table(own, "headrace_ends", own.url())
    await put(store, 100)
    for _ in range(100):
        await run_one(store)
    read: list[int] = []
    get = store.get

    async def noted(ids):  # as the store's own
        read.append(len(ids))
        return await get(ids)

    monkeypatch.setattr(store, "get", noted)
    sink = table.sink(store)
    own.crash()
    for _ in range(5):
        with pytest.raises(Unavailable):
            await sink.tidy()
    assert 20 <= sum(read) <= 30  # One batch and at most one page more.
    assert not sink._sent
    own.restart()
    await sink.drain()
    assert (sum(read), len(table.ids()), table.count()) == (100, 100, 100)


async def test_an_insert_whose_answer_was_lost_is_recognised(
    clickhouse: ClickHouseServer, table: Table, monkeypatch: pytest.MonkeyPatch
):
    """The table alone keeps the second copy out, before FINAL does."""
    store = MemoryStore()
    await put(store, 10)
    await table.sink(store, "host:0").tidy()
    await run_one(store)
    sink = table.sink(store, force=True)
    await sink.tidy()
    for _ in range(9):
        await run_one(store)
    async with holding(clickhouse) as proxy:
        proxy.answers = 0
        sink._target = ClickHouse(parse(clickhouse.url(port=proxy.port, table=table.name)), timeout=0.5)
        with pytest.raises(Unavailable, match=r"no answer within 0\.5 s"):
            await sink.tidy()
        async with asyncio.timeout(WAIT):
            await proxy.held.wait()
        proxy.answers = -1
        await sink.tidy()
    assert table.count() == 10


@pytest.mark.parametrize("database", ["nowhere", "default"])
async def test_a_refusal_is_told(clickhouse: ClickHouseServer, table: Table, database: str):
    if database == "default":
        columns = "id UUID, queue String, CONSTRAINT never CHECK queue = ''"
        clickhouse.run(f"CREATE TABLE {table.name} ({columns}) ENGINE = MergeTree ORDER BY id")
    store = MemoryStore()
    await put(store)
    await run_one(store)
    broken = Table(clickhouse, table.name, clickhouse.url(database, table=table.name))
    with pytest.raises(Unavailable, match=r"answered \d+: Code: \d+") as refused:
        await broken.sink(store).tidy()
    assert clickhouse.password not in str(refused.value)


async def test_tls(tmp_path: Path):
    authority(tmp_path, "ours")
    certificate(tmp_path, "server", "IP:127.0.0.1")
    store = MemoryStore()
    await put(store)
    await run_one(store)
    chain = tmp_path / "server.pem"
    odd = " pä:ß@/?#%[ "  # It reaches the server as it is.
    with ClickHouseServer.start(tls=(chain, tmp_path / "server.key"), ca=tmp_path / "ours.pem", password=odd) as server:
        table = Table(server, "headrace_ends", server.url(ca=str(tmp_path / "ours.pem")))
        await table.sink(store).tidy()
        assert len(table.ids()) == 1
        with pytest.raises(Unavailable, match="its certificate is not valid"):
            await Table(server, "headrace_ends", server.url()).sink(store, force=True).tidy()
        plain = server.url().replace("clickhouses", "clickhouse")
        with pytest.raises(Unavailable, match="cannot be reached"):
            await Table(server, "headrace_ends", plain).sink(store, force=True).tidy()


async def test_an_answer_that_is_no_http(table: Table, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clickhouse, "MAX_ANSWER", 4096)

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n" * 1000)
        writer.close()

    listener = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="cannot be reached"):
            await ClickHouse(parse(f"clickhouse://127.0.0.1:{port}")).insert(b"{}", "token")
