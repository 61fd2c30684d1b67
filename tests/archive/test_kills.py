"""A process that archives is killed at each step: no job is lost, and none is in the files twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from archive.rows import end_jobs, ended_in, files_in, hidden, move, rows_in
from headrace.store.contract import Store

JOBS = 60

SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path

from archive.rows import move
from headrace.operate.archive import move as moving, parquet
from headrace.operate.archive.folder import ArchiveFolder
from headrace.store import connect

url, folder, step, number = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
count = 0

def die(*_):
    global count
    count += 1
    if count == number:
        os.kill(os.getpid(), signal.SIGKILL)

def on_progress(done, total, what):
    if what.startswith(step):
        die()

def before(owner, name):
    known = getattr(owner, name)
    def call(*args, **options):
        die()
        return known(*args, **options)
    setattr(owner, name, call)

parquet._IDS = 7
moving._MOST = 16
moving.FIRST_PAGE = 4
if step == "rename":
    before(Path, "rename")
elif step == "finish":
    before(ArchiveFolder, "finish")
elif step == "dead letters":
    before(moving.dropped, "drop_dead")

async def main():
    store = connect(url)
    await store.open()
    await move(store, folder, rows=25, progress=on_progress)
    await store.close()

asyncio.run(main())
"""

STEPS = [
    ("reads", 1),
    ("reads", 3),
    ("rename", 1),
    ("rename", 3),
    ("has written", 1),
    ("has written", 2),
    ("deletes", 1),
    ("deletes", 2),
    ("deletes", 6),
    ("dead letters", 1),
    ("dead letters", 5),
    ("finish", 1),
    ("finish", 3),
]


@pytest.fixture(params=["sqlite", "postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def archive(url: str, folder: Path, step: str, number: int) -> int:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, url, str(folder), step, str(number)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    ).returncode


@pytest.mark.parametrize(("step", "number"), STEPS)
async def test_a_kill_loses_nothing(real_store: Store, store_url: str, tmp_path: Path, step: str, number: int) -> None:
    folder = tmp_path / "archive"
    ids = {str(id) for _ in range(3) for id in await end_jobs(real_store, JOBS // 3)}
    assert archive(store_url, folder, step, number) == -9
    in_files = Counter(row["id"] for row in rows_in(folder))
    assert set(in_files) | {str(id) for id in await ended_in(real_store)} == ids
    await move(real_store, folder, rows=25)
    assert Counter(row["id"] for row in rows_in(folder)) == Counter(ids)
    assert await ended_in(real_store) == set()
    assert hidden(folder) == []


async def test_kills_in_a_row_lose_nothing(real_store: Store, store_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    ids = {str(id) for _ in range(3) for id in await end_jobs(real_store, JOBS // 3)}
    for step, number in STEPS:
        code = archive(store_url, folder, step, number)
        if code == 0:
            break
    else:
        await move(real_store, folder)
    assert Counter(row["id"] for row in rows_in(folder)) == Counter(ids)
    assert await ended_in(real_store) == set()
    assert files_in(folder)
