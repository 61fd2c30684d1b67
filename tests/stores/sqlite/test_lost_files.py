"""A file that is deleted, replaced, truncated or damaged while it is in use: nothing is acknowledged any more, and it shows."""

# ruff: noqa: ASYNC240 - no other task is on this event loop

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from conformance.kit import batch, counts, new, put, take
from conftest import opened
from headrace.errors import StoreDamaged
from headrace.model.outcome import DONE
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import EPOCH
from headrace.store.sqlite.store import SqliteStore
from server.running import make_app, running

Harm = Callable[[Path], None]


def delete(file: Path) -> None:
    file.unlink()


def delete_all(file: Path) -> None:
    for path in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        path.unlink()


def move(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))


def replace(file: Path) -> None:
    other = file.with_name("other.db")
    conn = sqlite3.connect(other)
    conn.execute("create table t (x)")
    conn.close()
    other.replace(file)


def delete_log(file: Path) -> None:
    Path(f"{file}-wal").unlink()


def delete_log_index(file: Path) -> None:
    Path(f"{file}-shm").unlink()


def truncate(file: Path) -> None:
    os.truncate(file, 4096)


def empty(file: Path) -> None:
    os.truncate(file, 0)


HARMS = [delete, delete_all, move, replace, delete_log, delete_log_index, truncate, empty]


def checkpoint(file: Path) -> None:
    """What is in the log goes into the file, which SQLite does by itself from time to time."""
    conn = sqlite3.connect(file)
    conn.execute("pragma wal_checkpoint(truncate)").fetchall()
    conn.close()


@pytest.fixture
async def used(sqlite_store: SqliteStore, file: Path) -> SqliteStore:
    """With a hundred jobs in the file itself, and one of them running."""
    await sqlite_store.enqueue(batch(*[new(payload=bytes(1000))] * 100))
    await take(sqlite_store, 1)
    checkpoint(file)
    sqlite_store._files.compare()
    return sqlite_store


async def put_until_noticed(store: SqliteStore) -> None:
    """The file's size is looked at four times a second only, and by `now`."""
    await put(store)
    await store.now()


@pytest.mark.parametrize("harm", HARMS)
async def test_nothing_is_acknowledged_once_the_file_is_gone(used: SqliteStore, file: Path, harm: Harm):
    harm(file)
    if harm not in {truncate, empty}:
        with pytest.raises(StoreDamaged):
            await put(used)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"start them again|restore a backup"):
            await put_until_noticed(used)
    with pytest.raises(StoreDamaged):
        await used.now()
    with pytest.raises(StoreDamaged):
        await used.stats()


@pytest.mark.parametrize("harm", HARMS)
async def test_a_store_that_only_reads_notices(used: SqliteStore, file: Path, harm: Harm):
    harm(file)
    with pytest.raises(StoreDamaged):
        await used.now()


@pytest.mark.parametrize("harm", [delete, move, replace, delete_log])
async def test_a_commit_into_a_file_that_goes_meanwhile_is_not_acknowledged(used: SqliteStore, file: Path, harm: Harm):
    writer = used._writer
    assert writer is not None

    def work(tx: Tx) -> str:
        tx.cur.execute("insert into headrace_queue (name) values ('new')")
        harm(file)
        return "acknowledged"

    with pytest.raises(StoreDamaged):
        await writer.call(work)


async def test_a_running_job_cannot_end_in_a_deleted_file(sqlite_store: SqliteStore, file: Path):
    await put(sqlite_store)
    lease = await take(sqlite_store)
    delete(file)
    with pytest.raises(StoreDamaged):
        await sqlite_store.settle(lease.token, [(0, DONE)])


async def test_the_users_transaction_in_a_replaced_file(used: SqliteStore, file: Path):
    conn = sqlite3.connect(file)
    conn.execute("begin immediate")
    replace(file)
    with pytest.raises(StoreDamaged):
        used.enqueue_in(conn, batch(new()))
    conn.close()


async def use(store: SqliteStore) -> None:
    async with opened(store):
        await store.stats()
        await put(store)
        await take(store)


async def test_damage_that_sqlite_finds_is_final(used: SqliteStore, file: Path):
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        for page in range(1, size // 4096):
            damaged.seek(page * 4096)
            damaged.write(b"\xff" * 64)
    with pytest.raises(StoreDamaged, match="is damaged"):
        await use(SqliteStore(f"sqlite:///{file}"))


async def test_a_vacuumed_file_is_no_damage(used: SqliteStore, file: Path):
    conn = sqlite3.connect(file)
    conn.execute("create table big (x)")
    conn.execute("insert into big values (zeroblob(1000000))")
    conn.commit()
    checkpoint(file)
    await put(used)
    conn.execute("drop table big")
    conn.commit()
    conn.execute("vacuum")
    conn.close()
    before = file.stat().st_size
    checkpoint(file)
    assert file.stat().st_size < before
    await put(used)
    assert (await counts(used))["ready"] == 101


async def test_a_restored_file_serves_again(used: SqliteStore, file: Path, tmp_path: Path):
    copy = tmp_path / "copy.db"
    shutil.copy(file, copy)
    delete_all(file)
    with pytest.raises(StoreDamaged):
        await put(used)
    await used.close()
    copy.rename(file)
    await used.open()
    await put(used)
    assert await counts(used) == {"ready": 100, "running": 1}


# ── processes ────────────────────────────────────────────────────────────────

APP = """
from headrace import Headrace

app = Headrace({url!r})


@app.task
def t() -> None: ...
"""


async def worker_of(url: str, folder: Path) -> asyncio.subprocess.Process:
    (folder / "lost_app.py").write_text(APP.format(url=url))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli", "worker", "lost_app:app", "--processes", "2", "--heartbeat", "200ms",
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, stderr=subprocess.PIPE,
    )  # fmt: skip


async def two_workers(store: SqliteStore, since: datetime = EPOCH) -> None:
    """Wait until two workers are there that were seen after that time."""
    while len([worker for worker in await store.workers() if worker.seen_at and worker.seen_at > since]) < 2:
        await store.wait(("default",), 0.05)


@pytest.mark.parametrize("harm", [delete, replace, truncate])
async def test_a_worker_ends_with_74_and_says_why(url: str, file: Path, tmp_path: Path, harm: Harm):
    store = SqliteStore(url)
    await store.open()
    await store.enqueue(batch(*[new(queue="other", payload=bytes(1000))] * 100))
    worker = await worker_of(url, tmp_path)
    async with asyncio.timeout(120):
        await two_workers(store)
        checkpoint(file)
        # Each of them has looked at the file since.
        await two_workers(store, since=await store.now() + timedelta(seconds=1))
        store._files.compare()
        harm(file)
        _, said = await worker.communicate()
    lines = [line for line in said.decode().splitlines() if "can accept nothing from this worker any more: " in line]
    with pytest.raises(StoreDamaged):
        await store.now()
    await store.close()
    assert worker.returncode == 74
    assert 1 <= len(lines) <= 2  # one of each process; the supervisor may have told the second one to stop before
    assert all(str(file) in line for line in lines)
    assert "trying again" not in said.decode()
    # Nothing has made a new, empty file in its place.
    assert file.exists() == (harm is not delete)


@pytest.mark.parametrize("harm", [delete, replace, truncate])
async def test_a_server_answers_503(url: str, file: Path, harm: Harm):
    async with running(make_app(url)) as server:
        assert (await server.http.get("/readyz")).status_code == 200
        body = {"task": "add", "args": [1, 2]}
        assert (await server.http.post("/v1/jobs", json=body)).status_code == 201
        checkpoint(file)
        assert isinstance(server.store, SqliteStore)
        server.store._files.compare()
        harm(file)
        assert (await server.http.get("/readyz")).status_code == 503
        answer = await server.http.post("/v1/jobs", json=body)
        assert answer.status_code == 503
        assert answer.json()["code"] == "store_damaged"


async def test_check_tells_that_the_file_had_no_tables(url: str, file: Path):
    async with opened(SqliteStore(url)) as store:
        await put(store)
    replace(file)
    for level in ("warning", "ok"):
        async with opened(SqliteStore(url)) as store:
            assert {finding.about: finding.level for finding in await store.check()}["schema"] == level


def test_doctor_names_the_damage(url: str, file: Path):
    subprocess.run([sys.executable, "-m", "headrace.cli", "migrate", "--url", url], check=True, capture_output=True)
    os.truncate(file, 8192)
    answer = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "doctor", "--url", url, "--json"], check=False, capture_output=True
    )
    assert answer.returncode == 1
    findings = json.loads(answer.stdout)["findings"]
    assert [each["about"] for each in findings if each["level"] == "error"] == ["store"]
