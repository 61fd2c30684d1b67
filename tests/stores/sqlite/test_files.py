"""The file: where it may be, its permissions, and the error for each thing that can be wrong with it."""

# ruff: noqa: ASYNC240 - no other task is on this event loop

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from conformance.kit import batch, counts, new, put
from headrace.errors import ConfigError, SchemaMismatch, StoreFull, Unavailable
from headrace.store import connect
from headrace.store.sqlite.engine import address, connection
from headrace.store.sqlite.engine.migrate import steps
from headrace.store.sqlite.store import SqliteStore


async def opens(url: str) -> None:
    store = connect(url)
    try:
        await store.open()
    finally:
        await store.close()


async def test_s25_a_new_file_is_its_owners_alone(url: str, file: Path):
    store = SqliteStore(url)
    await store.open()
    await put(store)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
    await store.close()
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


async def test_closing_twice_and_opening_again(url: str):
    store = SqliteStore(url)
    await store.close()
    await store.open()
    await store.open()
    await put(store)
    await store.close()
    await store.close()
    with pytest.raises(Unavailable, match="open it first"):
        await put(store)
    await store.open()
    assert await counts(store) == {"ready": 1}
    await store.close()


async def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    await opens("sqlite:///here.db")
    assert (tmp_path / "here.db").exists()


async def test_a_name_with_odd_characters(tmp_path: Path):
    await opens(f"sqlite:///{tmp_path}/a%20b%3Fc.db")
    assert (tmp_path / "a b?c.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://host/file.db",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory",
        "sqlite:///x?mode=memory&cache=shared",
        "sqlite:///x.db?sync=off",
        "sqlite:///x.db?sync=full&timeout=3",
        "sqlite:///x.db#part",
        "sqlite:///a%00b.db",
    ],
)
def test_s25_urls_that_name_no_file(url: str):
    with pytest.raises(ConfigError):
        connect(url)


async def test_a_folder_that_does_not_exist(tmp_path: Path):
    with pytest.raises(ConfigError, match="create it first"):
        await opens(f"sqlite:///{tmp_path}/no/jobs.db")


async def test_a_file_for_a_folder(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="no folder"):
        await opens(f"sqlite:///{tmp_path}/file/jobs.db")


async def test_a_folder_for_a_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="is a folder"):
        await opens(f"sqlite:///{tmp_path}")


async def test_s25_a_link(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "jobs.db").symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic link"):
        await opens(f"sqlite:///{tmp_path}/jobs.db")
    assert victim.read_text() == "precious"


async def test_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "jobs.db")
    with pytest.raises(ConfigError, match="no regular file"):
        await opens(f"sqlite:///{tmp_path}/jobs.db")


async def test_something_that_is_no_database(url: str, file: Path):
    file.write_text("dear diary, " * 100)
    with pytest.raises(ConfigError, match="no SQLite database"):
        await opens(url)
    assert file.read_text() == "dear diary, " * 100


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
async def test_a_database_of_another_encoding(url: str, file: Path, encoding: str):
    conn = sqlite3.connect(file)
    conn.execute(f"pragma encoding = '{encoding}'")
    conn.execute("create table mine (x text)")
    conn.close()
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=rf"holds text as {encoding}, headrace needs UTF-8"):
        await opens(url)
    assert file.read_bytes() == before


async def test_s25_a_network_file_system(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/export {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(address, "_MOUNTS", mounts)
    with pytest.raises(ConfigError, match=r"network file system \(nfs4\)"):
        await opens(url)


@pytest.fixture
def nobody(tmp_path: Path) -> Generator[None]:
    """Run as another user for a while, because root may write everything."""
    if os.geteuid():
        yield
        return
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(0o755)
    os.seteuid(65534)
    yield
    os.seteuid(0)


async def test_a_file_that_cannot_be_written(url: str, file: Path, tmp_path: Path, request: pytest.FixtureRequest):
    await opens(url)
    file.chmod(0o444)
    if os.geteuid() == 0:
        tmp_path.chmod(0o777)
    request.getfixturevalue("nobody")
    with pytest.raises(ConfigError, match="cannot be written by this user"):
        await opens(url)


async def test_a_folder_that_cannot_be_written(url: str, tmp_path: Path, request: pytest.FixtureRequest):
    tmp_path.chmod(0o555)
    request.getfixturevalue("nobody")
    with pytest.raises(ConfigError, match="cannot be written by this user"):
        await opens(url)


async def test_a_file_that_becomes_read_only(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    writer = sqlite_store._writer
    assert writer is not None
    await writer.call(lambda tx: tx.cur.connection.execute("select 1") and None)

    def make_read_only(tx: object) -> list[object]:
        tx.cur.execute("pragma query_only = on")  # type: ignore[attr-defined]
        return []

    await writer.call(make_read_only, look=make_read_only)
    with pytest.raises(Unavailable, match="read-only"):
        await put(sqlite_store)


async def test_a_full_disk(sqlite_store: SqliteStore):
    [kept] = await put(sqlite_store)
    writer = sqlite_store._writer
    assert writer is not None

    def cap(pages: int):
        def limit(tx: object) -> list[object]:
            tx.cur.execute(f"pragma max_page_count = {pages}")  # type: ignore[attr-defined]
            return []

        return limit

    await writer.call(cap(1), look=cap(1))  # SQLite takes the present size, if that is more
    with pytest.raises(StoreFull, match="free some space"):
        await sqlite_store.enqueue(batch(*[new(payload=bytes(100_000))] * 20))
    assert await counts(sqlite_store) == {"ready": 1}
    await writer.call(cap(1 << 30), look=cap(1 << 30))
    await sqlite_store.enqueue(batch(*[new(payload=bytes(100_000))] * 20))
    assert await counts(sqlite_store) == {"ready": 21}
    assert (await sqlite_store.get([kept]))[0] is not None


async def test_a_schema_from_the_future(url: str, file: Path):
    await opens(url)
    conn = sqlite3.connect(file)
    with conn:
        conn.execute("insert into headrace_migration values (9999, 'later', 0)")
    conn.close()
    with pytest.raises(SchemaMismatch, match="update headrace"):
        await opens(url)


async def test_migrate_tells_its_steps_once(url: str):
    store = SqliteStore(url)
    told: list[tuple[int, int, str]] = []
    names = [name for _, name in steps()]
    assert names[:3] == ["0001_foundation.sql", "0002_records.sql", "0003_flow.sql"]
    assert await store.migrate(lambda *step: told.append(step)) == [name.removesuffix(".sql") for name in names]
    assert told == [(done, len(names), name) for done, name in enumerate(names, start=1)]
    assert await store.migrate() == []


async def test_beside_the_tables_of_an_application(url: str, file: Path):
    conn = sqlite3.connect(file)
    with conn:
        conn.execute("create table job (id integer primary key)")
        conn.execute("pragma user_version = 42")
    await opens(url)
    assert conn.execute("pragma user_version").fetchone() == (42,)
    conn.close()


@pytest.mark.parametrize(("query", "sync"), [("", 2), ("?sync=full", 2), ("?sync=normal", 1)])
async def test_durability_is_what_the_url_says(
    url: str, query: str, sync: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/vda / ext4 rw 0 0\n")  # the tests' own folder may be in memory
    monkeypatch.setattr(address, "_MOUNTS", mounts)
    store = SqliteStore(url + query)
    await store.open()
    writer = store._writer
    assert writer is not None
    found = await writer.call(lambda tx: tx.cur.execute("pragma synchronous").fetchone()[0])
    flushes = await writer.call(lambda tx: tx.cur.execute("pragma fullfsync").fetchone()[0])
    findings = {finding.about: finding for finding in await store.check()}
    await store.close()
    assert (found, flushes) == (sync, sync == 2)
    assert findings["durability"].level == ("warning" if sync == 1 else "ok")


async def test_check_warns_of_a_file_in_memory(
    sqlite_store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n")
    monkeypatch.setattr(address, "_MOUNTS", mounts)
    found = {finding.about: finding for finding in await sqlite_store.check()}
    assert found["durability"].level == "warning"
    assert "in memory" in found["durability"].message


async def test_s76_check_looks_at_everything(sqlite_store: SqliteStore, file: Path):
    await put(sqlite_store, 10)
    file.chmod(0o644)
    found = {finding.about: finding for finding in await sqlite_store.check()}
    assert set(found) == {"version", "schema", "durability", "file mode", "log", "integrity"}
    assert found["file mode"].level == "warning"
    assert found["integrity"].level == "ok"
    old = sqlite3.sqlite_version_info < (3, 51, 3)
    assert found["version"].level == ("warning" if old else "ok")


async def test_check_sees_damage(url: str, file: Path):
    store = SqliteStore(url)
    await store.open()
    await store.enqueue(batch(*[new(payload=bytes(1000))] * 500))
    await store.close()
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    file.write_bytes(content)
    reader = connection.connect(address.Address.parse(url), writes=False)
    (answer,) = reader.execute("pragma quick_check(1)").fetchone()
    reader.close()
    assert answer != "ok"
    await store.open()
    findings = {finding.about: finding.level for finding in await store.check()}
    await store.close()
    assert findings["integrity"] == "error"


async def test_a_copy_of_the_file_is_a_whole_store(sqlite_store: SqliteStore, file: Path, tmp_path: Path):
    await put(sqlite_store, 3)
    copy = tmp_path / "copy.db"
    source, target = sqlite3.connect(file), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    store = SqliteStore(f"sqlite:///{copy}")
    await store.open()
    assert await counts(store) == {"ready": 3}
    await store.close()
