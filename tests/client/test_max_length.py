"""A queue's `max_length` holds whichever way a job takes into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from conformance.kit import settle_all, take
from headrace import Headrace, QueueFull, Task
from headrace.cli.root import root
from headrace.client import queue_guard
from headrace.client.queue_guard import bounded
from headrace.model.job import NewJob
from headrace.model.lane import Lane
from headrace.operate.schedules import Schedules
from headrace.policy.queue import declare as declare_queue
from headrace.policy.schedule import declare
from headrace.store.contract import Store
from headrace.store.memory.store import MemoryStore
from headrace.testing.clock import FakeClock
from headrace.worker.ticker import Ticker

HOUR = timedelta(hours=1)


@pytest.fixture
def short(app: Headrace) -> Task[[int], None]:
    app.queue("short", max_length=2)

    @app.task(name="note", queue="short")
    def note(n: int) -> None: ...

    app.stats()  # makes what is not there
    return note


@pytest.fixture
def outbox_app(tmp_path: Path) -> Headrace:
    app = Headrace("memory://")
    app.outbox(f"sqlite:///{tmp_path}/business.db")
    return app


@contextmanager
def transaction(url: str) -> Generator[Any]:
    """The user's own."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("begin immediate")
            yield connection
            connection.execute("commit")
    else:
        with psycopg.connect(url) as connection:
            yield connection


@pytest.mark.parametrize("store_name", ["sqlite", "postgres"], indirect=True)
def test_in_the_callers_transaction(app: Headrace, short: Task[[int], None], store_url: str):
    with transaction(store_url) as tx:
        short.using(tx=tx).enqueue(1)
        with pytest.raises(QueueFull, match="queue short is full, its max_length is 2"):
            app.enqueue_many([short.job(2), short.job(3)], tx=tx)
        short.using(tx=tx).enqueue(2)
        with pytest.raises(QueueFull):
            short.using(tx=tx).enqueue(3)
    assert [queue.ready for queue in app.stats().queues] == [2]  # the transaction is whole after a refusal
    app.close()


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
async def test_in_the_callers_transaction_from_async_code(app: Headrace, store_url: str):
    app.queue("short", max_length=1)

    @app.task(name="note", queue="short")
    async def note(n: int) -> None: ...

    await app.astats()
    with transaction(store_url) as tx:
        await note.using(tx=tx).aenqueue(1)
        with pytest.raises(QueueFull):
            await note.using(tx=tx).aenqueue(2)
    await app.aclose()


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
def test_a_schedule_that_is_run_by_hand(app: Headrace, short: Task[[int], None]):
    app.schedules.add("hourly", every="1h", job=short.job(1))
    app.schedules.run_now("hourly")
    app.schedules.run_now("hourly")
    with pytest.raises(QueueFull):
        app.schedules.run_now("hourly")


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is looked up every time."""
    monkeypatch.setattr(queue_guard, "FRESH", 0.0)


def guarded(store: Store, queue: str, max_length: int) -> Store:
    return bounded(store, {queue: declare_queue(queue, max_length=max_length)})


async def ready(store: Store) -> int:
    return sum(queue.ready for queue in (await store.stats()).queues)


@pytest.mark.usefixtures("always_looking")
async def test_slots_of_a_schedule_wait_for_room_and_each_is_fired_once(caplog: pytest.LogCaptureFixture):
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    await store.open()
    rule = declare("s", every="1h", catch_up="all(10)", job=NewJob("t", b"{}", Lane("short")))
    ticker = Ticker(guarded(store, "short", 2), {"s": rule}, poll=0.0)
    await ticker.introduce()
    clock.advance(4 * HOUR)
    for _ in range(4):
        await ticker.tick()
        clock.advance(timedelta(seconds=2))
    assert await ready(store) == 2
    entry = (await Schedules(store).all())["s"]
    assert len(entry.pending) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "schedule s waits: queue short is full, its max_length is 2: try again later, or start more workers"
    ]
    first = await take(store, 10, "short")
    await settle_all(store, first)
    await store.delete([job.id for job in first.jobs])  # were they fired again now, they would run twice
    for _ in range(4):
        await ticker.tick()
        clock.advance(timedelta(seconds=2))
    second = await take(store, 10, "short")
    assert {job.id for job in second.jobs}.isdisjoint({job.id for job in first.jobs})
    assert len(second.jobs) == 2
    assert (await Schedules(store).all())["s"].pending == ()


@pytest.mark.usefixtures("always_looking")
async def test_the_outboxs_relay_waits_for_room(outbox_app: Headrace, tmp_path: Path):
    app = outbox_app
    app.queue("short", max_length=2)
    ran: list[int] = []

    @app.task(name="note", queue="short")
    async def note(n: int) -> None:
        ran.append(n)

    @app.task(name="other")
    async def other() -> None: ...

    outbox = app.outbox(f"sqlite:///{tmp_path}/business.db")
    await outbox.prepare()
    with closing(sqlite3.connect(tmp_path / "business.db")) as database, database:
        handles = [note.using(tx=database).enqueue(n) for n in range(5)]
        last = other.using(tx=database).enqueue()
    async with app.worker(queues=["default"]):
        await last.aresult(timeout=60)
        assert (await outbox.depth()).waiting == 3
        assert [queue.ready for queue in (await app.astats()).queues if queue.queue == "short"] == [2]
        async with app.worker(queues=["short"]):
            for handle in handles:
                await handle.aresult(timeout=60)
    assert sorted(ran) == [0, 1, 2, 3, 4]
    await app.aclose()


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
def test_the_command_line(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "short_shop.py").write_text(
        "from headrace import Headrace\n"
        "app = Headrace()\n"
        'app.queue("short", max_length=1)\n\n\n'
        '@app.task(name="note", queue="short")\n'
        "def note() -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["enqueue", "note", "--app", "short_shop:app", "--url", store_url]
    assert CliRunner().invoke(root, command).exit_code == 0
    refused = CliRunner().invoke(root, command)
    assert refused.exit_code == 1
    assert "queue short is full, its max_length is 1" in refused.stderr
