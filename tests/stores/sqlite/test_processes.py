"""Several processes on one file: migrations raced, jobs shared, wake-ups heard, and death in the middle of a write."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from conformance.kit import claim, counts, ids, look, put
from headrace.model.job import JobState, job_id
from headrace.store.sqlite.engine.migrate import steps
from headrace.store.sqlite.engine.wakeup import Bell, private_folder
from headrace.store.sqlite.store import SqliteStore
from headrace.store.sqlite.verbs import wait

CHILD = Path(__file__).with_name("child.py")


@asynccontextmanager
async def child(url: str, what: str) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, str(CHILD), url, what, stdin=PIPE, stdout=PIPE)
    try:
        assert await line(process) == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def rest(process: Process) -> list[str]:
    """Close its input, and hear everything it has to say."""
    out, _ = await process.communicate(b"")
    assert process.returncode == 0
    return out.decode().split()


async def tell(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


async def test_migrations_raced(url: str, file: Path):
    async with AsyncExitStack() as stack:
        racers = [await stack.enter_async_context(child(url, "migrate")) for _ in range(4)]
        said = await asyncio.gather(*[rest(racer) for racer in racers])
    assert sorted(said) == [[], [], [], [",".join(name.removesuffix(".sql") for _, name in steps())]]
    conn = sqlite3.connect(file)
    assert conn.execute("select version from headrace_migration").fetchall() == [(number,) for number, _ in steps()]
    conn.close()


async def test_two_processes_share_the_jobs(sqlite_store: SqliteStore, url: str):
    made = [id for _ in range(10) for id in await put(sqlite_store, 20)]
    async with child(url, "work") as one, child(url, "work") as two:
        said = await asyncio.gather(rest(one), rest(two))
    done = [UUID(word) for words in said for word in words]
    assert sorted(done) == sorted(made)
    assert await counts(sqlite_store) == {}
    [stats] = (await sqlite_store.stats()).queues
    assert (stats.enqueued_total, stats.done_total) == (200, 200)


async def test_a_waiter_in_another_process_hears_an_enqueue(sqlite_store: SqliteStore, url: str):
    async with child(url, "wait") as waiter:
        await put(sqlite_store)
        assert await rest(waiter) == ["True"]


async def test_a_waiter_hears_another_process(sqlite_store: SqliteStore, url: str, monkeypatch: pytest.MonkeyPatch):
    """By datagram: the change counter is not read here."""
    monkeypatch.setattr(wait, "_LOOK", 3600)
    async with child(url, "enqueue") as other:
        waiting = asyncio.ensure_future(sqlite_store.wait(("default",), 60))
        await asyncio.sleep(0)
        await tell(other)
        assert await waiting
        assert len(ids(await claim(sqlite_store))) == 1


async def test_a_waiter_without_datagrams_looks_by_itself(
    sqlite_store: SqliteStore, url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Bell, "listen", lambda _: None)
    async with child(url, "enqueue") as other:
        waiting = asyncio.ensure_future(sqlite_store.wait(("default",), 60))
        await claim(sqlite_store)  # behind the waiter's first look
        await tell(other)
        assert await waiting


async def test_a_dead_waiter_is_forgotten(sqlite_store: SqliteStore, url: str, file: Path):
    folder = private_folder(file)
    assert folder is not None
    async with child(url, "wait") as waiter:
        assert len(list(folder.glob("*.s"))) == 1
        os.kill(waiter.pid, signal.SIGKILL)
        await waiter.wait()
    await put(sqlite_store)
    await put(sqlite_store)  # hints follow the answer, so the second call ends behind the hints of the first
    assert list(folder.glob("*.s")) == []


async def test_the_last_one_to_leave_tidies_up(url: str, file: Path):
    one, two = SqliteStore(url), SqliteStore(url)
    await one.open()
    await two.open()
    await asyncio.gather(one.wait(("default",), 0.01), two.wait(("default",), 0.01))
    folder = private_folder(file)
    assert folder is not None
    await one.close()
    assert folder.exists()
    (folder / "turn").unlink()
    await put(two)
    assert (folder / "turn").exists()
    await two.close()
    assert not folder.exists()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder for temporary files with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.setattr("headrace.store.sqlite.engine.wakeup._LAST_RESORT", folder)
        yield Path(folder)


def test_a_folder_of_somebody_else_is_not_used(temporary: Path, file: Path):
    mine = temporary / f"headrace-{os.geteuid()}"
    mine.mkdir(mode=0o700)
    assert private_folder(file) is not None
    mine.chmod(0o777)
    assert private_folder(file) is None
    mine.chmod(0o700)
    mine.rename(temporary / "elsewhere")
    mine.symlink_to(temporary / "elsewhere")
    assert private_folder(file) is None


def test_a_folder_with_too_long_a_name_is_not_used(temporary: Path, file: Path, monkeypatch: pytest.MonkeyPatch):
    long = temporary / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert private_folder(file) == private_folder(file)
    assert str(private_folder(file)).startswith(f"{temporary}/headrace-")


async def test_without_a_folder_everything_works_but_hints(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.store.sqlite.store.private_folder", lambda _: None)
    store = SqliteStore(url)
    await store.open()
    await put(store)
    assert await store.wait(("default",), 60)
    assert len(ids(await claim(store))) == 1
    assert not await store.wait(("default",), 0.01)
    await store.close()


async def test_killed_in_the_middle_of_writes(sqlite_store: SqliteStore, url: str, file: Path):
    """Two processes at work, both killed again and again: what was acknowledged is there, and the file is sound."""
    acknowledged: list[UUID] = []
    for _ in range(5):
        async with child(url, "hammer") as one, child(url, "hammer") as two:
            for _ in range(10):
                acknowledged += [UUID(await line(one)), UUID(await line(two))]
            one.kill()
            two.kill()
            acknowledged += [UUID(word) for words in await asyncio.gather(_last(one), _last(two)) for word in words]
    check = sqlite3.connect(file)
    assert check.execute("pragma integrity_check").fetchall() == [("ok",)]
    check.close()
    found = await sqlite_store.get([job_id(batch, ord) for batch in acknowledged for ord in range(50)])
    assert all(found)
    await _counters_are_true(sqlite_store)
    if (lease := await claim(sqlite_store)) is not None:
        assert (await look(sqlite_store, lease.jobs[0].id)).state is JobState.RUNNING


async def _last(process: Process) -> list[str]:
    out, _ = await process.communicate()
    return [word for word in out.decode().split("\n")[:-1] if word]


async def _counters_are_true(store: SqliteStore) -> None:
    """The counters are what counting gives."""
    [stats] = (await store.stats()).queues
    reader = store._reader
    assert reader is not None
    counted = dict(
        await reader.call(lambda tx: tx.cur.execute("select state, count(*) from headrace_jobs group by 1").fetchall())
    )
    assert counted.get("ready", 0) == stats.ready
    assert counted.get("running", 0) == stats.running
    assert counted.get("done", 0) == stats.done_total
    assert sum(counted.values()) == stats.enqueued_total
