"""Jobs as rows of a Parquet file. Only this module imports pyarrow, which has no types."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from headrace.model.job import JobId

pyarrow: Final[Any] = import_module("pyarrow")
_parquet: Final[Any] = import_module("pyarrow.parquet")

GROUP_ROWS: Final = 10_000
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Rows, and characters of their texts, that are kept in memory before they are written as one group."""
_IDS: Final = 500
"""Endings that are read, and jobs that are deleted, at once. On SQLite other writers wait meanwhile."""


class ArchivedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    id: str
    queue: str
    task: str
    tenant: str
    state: str
    priority: int
    attempts: int
    enqueued_at: datetime
    started_at: datetime | None
    ended_at: datetime
    wait: float | None
    run: float | None
    error: str | None
    fingerprint: str | None
    args: str
    result: str | None


class ArchivedEnd(NamedTuple):
    """Which end of which job a file holds."""

    id: JobId
    state: str
    at: datetime


def _schema() -> Any:
    name = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    time = pyarrow.timestamp("us", tz="UTC")
    return pyarrow.schema(
        [
            pyarrow.field("id", pyarrow.string(), nullable=False),
            pyarrow.field("queue", name, nullable=False),
            pyarrow.field("task", name, nullable=False),
            pyarrow.field("tenant", name, nullable=False),
            pyarrow.field("state", name, nullable=False),
            pyarrow.field("priority", pyarrow.int32(), nullable=False),
            pyarrow.field("attempts", pyarrow.int32(), nullable=False),
            pyarrow.field("enqueued_at", time, nullable=False),
            pyarrow.field("started_at", time),
            pyarrow.field("ended_at", time, nullable=False),
            pyarrow.field("wait", pyarrow.float64()),
            pyarrow.field("run", pyarrow.float64()),
            pyarrow.field("error", pyarrow.string()),
            pyarrow.field("fingerprint", pyarrow.string()),
            pyarrow.field("args", pyarrow.string(), nullable=False),
            pyarrow.field("result", pyarrow.string()),
        ]
    )


SCHEMA: Final = _schema()


class ArchiveFile:
    """A file that is being written, group by group, so that its size does not matter."""

    def __init__(self, path: Path) -> None:
        self._writer: Any = _parquet.ParquetWriter(path, SCHEMA, compression="zstd")
        self._waiting: list[ArchivedJob] = []
        self._characters = 0
        self.rows = 0

    def add(self, job: ArchivedJob) -> None:
        self._waiting.append(job)
        self._characters += len(job.args) + len(job.result or "") + len(job.error or "")
        self.rows += 1
        if len(self._waiting) >= GROUP_ROWS or self._characters >= GROUP_BYTES:
            self._write()

    def close(self) -> None:
        self._write()
        self._writer.close()
        # What the allocator keeps for the next file would count as memory of this process.
        pyarrow.default_memory_pool().release_unused()

    def _write(self) -> None:
        jobs, self._waiting, self._characters = self._waiting, [], 0
        if jobs:
            columns = {name: [getattr(job, name) for job in jobs] for name in ArchivedJob.__struct_fields__}
            self._writer.write_table(pyarrow.Table.from_pydict(columns, schema=SCHEMA), row_group_size=len(jobs))


def count_rows(path: Path) -> int:
    """The rows of a file, which its last bytes say."""
    count: int = _parquet.read_metadata(path).num_rows
    return count


def endings(path: Path) -> Iterator[list[ArchivedEnd]]:
    """The ends that a file holds, some at a time."""
    with _parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_IDS, columns=["id", "state", "ended_at"]):
            columns = batch.to_pydict()
            yield [
                ArchivedEnd(JobId(UUID(id)), state, at)
                for id, state, at in zip(columns["id"], columns["state"], columns["ended_at"], strict=True)
            ]
