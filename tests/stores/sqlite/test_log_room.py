"""Room in the write-ahead log: made when commits lengthen the log, never read as jobs, and never in the way of them."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.kit import batch, counts, new, put
from headrace.store.sqlite.engine import log_room, writer
from headrace.store.sqlite.engine.log_room import LogRoom
from headrace.store.sqlite.store import SqliteStore
from stores.sqlite.sync_code import SyncCode

SOME = writer._LOOK_AT_LOG


@pytest.fixture(autouse=True)
def never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint lets the log begin again."""
    monkeypatch.setattr(writer, "_IDLE", 3600.0)


def log_of(file: Path) -> Path:
    return Path(f"{file}-wal")


async def room_made(store: SqliteStore) -> None:
    """Commits that lengthen the log, and some that find room."""
    for _ in range(2 * SOME):
        await put(store)


async def test_commits_that_lengthen_the_log_make_room(sqlite_store: SqliteStore, file: Path):
    await room_made(sqlite_store)
    size = log_of(file).stat().st_size
    assert size == log_room._LEAST
    await put(sqlite_store)
    assert log_of(file).stat().st_size == size


async def test_so_do_commits_of_sync_code(blocking: SyncCode, file: Path):
    for _ in range(2 * SOME):
        blocking.enqueue(batch(new()))
    assert log_of(file).stat().st_size == log_room._LEAST


async def test_a_store_without_syncs_makes_none(url: str, file: Path):
    store = SqliteStore(f"{url}?sync=normal")
    await store.open()
    await room_made(store)
    assert log_of(file).stat().st_size < log_room._LEAST
    await store.close()


async def test_a_crash_loses_no_job_and_finds_none_in_the_room(sqlite_store: SqliteStore, file: Path, tmp_path: Path):
    await room_made(sqlite_store)
    copy = tmp_path / "copy" / "jobs.db"
    copy.parent.mkdir()
    for path in (file, log_of(file)):
        shutil.copyfile(path, copy.with_name(path.name))
    crashed = SqliteStore(f"sqlite:///{copy}")
    await crashed.open()
    assert await counts(crashed) == {"ready": 2 * SOME}
    await put(crashed)
    assert await counts(crashed) == {"ready": 2 * SOME + 1}
    await crashed.close()


async def test_two_stores_make_room_once(sqlite_store: SqliteStore, url: str, file: Path):
    await room_made(sqlite_store)
    before = log_of(file).stat().st_size
    other = SqliteStore(url)
    await other.open()
    room = LogRoom(other._files)
    room.look()
    assert room.is_short  # by what it knows
    await other._write(lambda _: room.extend())
    assert log_of(file).stat().st_size == before
    room.look()
    assert not room.is_short
    await other.close()


async def test_a_log_of_another_file_is_left_alone(sqlite_store: SqliteStore, file: Path):
    room = LogRoom(sqlite_store._files)
    await put(sqlite_store)
    log_of(file).rename(file.with_name("old"))
    log_of(file).write_bytes(b"of another file")
    room.extend()
    assert log_of(file).read_bytes() == b"of another file"
    file.with_name("old").rename(log_of(file))


@contextmanager
def longest_file(size: int) -> Generator[None]:
    """Let the system refuse to make files longer, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_gets_its_space_back(sqlite_store: SqliteStore, file: Path):
    room = LogRoom(sqlite_store._files)
    await put(sqlite_store)
    size = log_of(file).stat().st_size

    def extend() -> None:
        with longest_file(size + 10_000):
            room.extend()

    await asyncio.to_thread(extend)
    assert log_of(file).stat().st_size == size
    await put(sqlite_store)
    assert await counts(sqlite_store) == {"ready": 2}
