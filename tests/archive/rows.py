"""What an archive holds, read back with pyarrow, and jobs to put into one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.kit import CANCELLED, DEAD, put, take
from headrace.model.job import FINISHED, JobId
from headrace.model.outcome import DONE, Settlement
from headrace.model.records import Filter
from headrace.operate.archive.move import ArchiveCut
from headrace.operate.operations import Operations
from headrace.store.contract import Store

parquet: Any = import_module("pyarrow.parquet")
EVER = datetime(2100, 1, 1, tzinfo=UTC)
"""After the end of every job."""
ALL = ArchiveCut(done=EVER, dead=EVER)
ENDS: Sequence[Settlement] = (DONE, DONE, DEAD, CANCELLED)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [row for path in files_in(folder) if path.name[0] != "." for row in parquet.read_table(path).to_pylist()]


def hidden(folder: Path) -> list[str]:
    """Names that only a run in progress leaves."""
    return sorted(path.name for path in folder.iterdir() if path.name[0] == "." and path.name != ".lock")


async def end_jobs(store: Store, count: int, ends: Sequence[Settlement] = ENDS, **options: Any) -> list[JobId]:
    """Enqueue jobs and end them in turn as `ends` says."""
    ids = await put(store, count, **options)
    queue = options.get("queue", "default")
    left = count
    while left:
        lease = await take(store, min(500, left), queue)
        await store.settle(lease.token, [(place, ends[place % len(ends)]) for place in range(len(lease.jobs))])
        left -= len(lease.jobs)
    return ids


async def ended_in(store: Store) -> set[JobId]:
    ids: set[JobId] = set()
    before: JobId | None = None
    while True:
        page = await store.find(Filter(states=FINISHED), before=before, limit=500)
        ids |= {job.id for job in page.jobs}
        if page.next is None:
            return ids
        before = page.next


async def move(store: Store, folder: Path, cut: ArchiveCut = ALL, **options: Any) -> Any:
    return await Operations(store, actor="tester").archive.move(folder, cut, **options)
