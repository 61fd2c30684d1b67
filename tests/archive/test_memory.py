"""The memory of an archiving process does not depend on the number of jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from archive.rows import files_in, parquet
from conformance.kit import put, settle_all, take
from headrace.store.contract import Store

FEW, MANY = 20_000, 80_000
PAYLOAD = msgspec.msgpack.encode(([], {"text": "x" * 200}))

SCRIPT = """
import asyncio, resource, sys
from pathlib import Path

from archive.rows import move
from headrace.store import connect

async def main():
    store = connect(sys.argv[1])
    await store.open()
    await move(store, Path(sys.argv[2]))
    await store.close()

asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def end(store: Store, count: int) -> None:
    left = count
    while left:
        await put(store, min(left, 20_000), payload=PAYLOAD)
        for _ in range(0, min(left, 20_000), 500):
            await settle_all(store, await take(store, 500))
        left -= min(left, 20_000)


def peak_of(url: str, folder: Path) -> int:
    """The most memory that a process needs to archive everything, in kilobytes."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    return int(run.stdout)


async def test_four_times_as_many_jobs_need_the_same_memory(real_store: Store, store_url: str, tmp_path: Path) -> None:
    await end(real_store, FEW)
    few = peak_of(store_url, tmp_path / "few")
    await end(real_store, MANY)
    many = peak_of(store_url, tmp_path / "many")
    assert sum(parquet.read_metadata(path).num_rows for path in files_in(tmp_path / "many")) == MANY
    assert many / few < 1.3
