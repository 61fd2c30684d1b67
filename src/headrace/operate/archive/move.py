"""Moves ended jobs into Parquet files: a file is whole and on disk before its jobs are deleted.

`docs/internals/history.md` says why a process that is killed at any point loses no job and writes none twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.errors import ConfigError, SerializationError
from headrace.model.job import FINISHED, Job, JobId, JobState
from headrace.model.records import Filter, Progress
from headrace.operate import shown
from headrace.operate.archive.folder import ArchiveFolder
from headrace.operate.audit import Ledger
from headrace.operate.dead import dropped
from headrace.operate.shown import TaskSource
from headrace.store.contract import Store

if TYPE_CHECKING:
    from headrace.operate.archive.parquet import ArchivedEnd, ArchivedJob, ArchiveFile
    from headrace.task.task import Task

FILE_ROWS: Final = 100_000
"""Jobs of one file, at most."""
_PLAIN: Final = FINISHED - {JobState.DEAD}
FIRST_PAGE: Final = 100
_FEWEST, _MOST = 20, 1000
"""Jobs that one call of the store reads: at first, at least and at most."""
_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of arguments and results that a page should have at most. Memory depends on it, so pages of large jobs are short."""


class ArchiveCut(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are moved: those that ended before these times."""

    done: datetime
    """For done and cancelled jobs."""
    dead: datetime
    """For dead letters."""

    def before(self, state: JobState) -> datetime:
        """The time for jobs in this state."""
        return self.dead if state is JobState.DEAD else self.done


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What a call has moved."""

    jobs: int
    """Jobs that were deleted from the store, those of earlier files included."""
    kept: int
    """Jobs that are in a file and stay in the store, because an operator has retried or deleted them meanwhile."""
    files: list[str]
    """The names of the files that were written."""


class ArchiveOperations:
    """Moves ended jobs of one store into files."""

    def __init__(self, store: Store, ledger: Ledger, task_of: TaskSource) -> None:
        self._store = store
        self._ledger = ledger
        self._task_of = task_of

    async def move(
        self,
        path: Path,
        cut: ArchiveCut,
        *,
        queue: str | None = None,
        rows: int = FILE_ROWS,
        progress: Progress | None = None,
    ) -> Archived:
        """Move jobs into files of this folder. A call goes on where an earlier one was interrupted.

        Raises ConfigError if pyarrow is missing, or if another process archives into the folder.
        """
        _check_arrow()
        folder = ArchiveFolder(path)
        run = _Run(self._store, self._ledger.actor, folder, progress)
        what = f"{path}: done before {_text(cut.done)}, dead before {_text(cut.dead)}" + (
            "" if queue is None else f", queue={queue}"
        )
        with folder.locked():
            try:
                for file in folder.unfinished():
                    await run.delete(file)
                await self._write(run, cut, queue, rows)
            finally:
                if run.moved:  # an interrupted call leaves its entry, too
                    await self._ledger.note("jobs.archive", what, run.moved)
        return Archived(jobs=run.moved, kept=run.kept, files=run.files)

    async def _write(self, run: _Run, cut: ArchiveCut, queue: str | None, rows: int) -> None:
        async for jobs in self._pages(cut, queue):
            for job in jobs:
                run.add(_row(job, self._task_of))
                if run.rows >= rows:
                    await run.publish()
            run.tell("reads")
        if run.rows:
            await run.publish()

    async def _pages(self, cut: ArchiveCut, queue: str | None) -> AsyncIterator[list[Job]]:
        """The jobs to move, the newest first, each page with its failures."""
        # Jobs ended after they were enqueued, so that this leaves out most of those that are too young.
        where = Filter(states=FINISHED, queue=queue, until=max(cut.done, cut.dead))
        before: JobId | None = None
        limit = FIRST_PAGE
        while True:
            page = await self._store.find(where, before=before, limit=limit)
            jobs = [job for job in page.jobs if job.finished_at is not None and job.finished_at < cut.before(job.state)]
            if jobs:
                yield await self._whole(jobs)
            if page.next is None:
                return
            before = page.next
            size = sum(len(job.payload) + len(job.result or b"") for job in page.jobs)
            limit = max(_FEWEST, limit // 2) if size > _PAGE_BYTES else min(_MOST, limit * 2)

    async def _whole(self, jobs: list[Job]) -> list[Job]:
        """The same jobs. Those that have failed come with their failures, which `find` leaves out."""
        failed = [job.id for job in jobs if job.state is JobState.DEAD or job.failures or job.crashes]
        known: dict[JobId, Job] = {}
        for start in range(0, len(failed), dropped.PAGE):
            some = await self._store.get(failed[start : start + dropped.PAGE])
            known |= {job.id: job for job in some if job is not None and job.finished_at is not None}
        return [known.get(job.id, job) for job in jobs]


class _Run:
    """One call: its open file, and what it has moved so far."""

    def __init__(self, store: Store, actor: str, folder: ArchiveFolder, progress: Progress | None) -> None:
        self._store = store
        self._actor = actor
        self._folder = folder
        self._progress = progress
        self._file: ArchiveFile | None = None
        self._name = ""
        self._written = self._checked = 0
        """Rows of the files so far, and of them those whose jobs were deleted or stay."""
        self.files: list[str] = []
        self.moved = self.kept = 0

    @property
    def rows(self) -> int:
        """Rows of the open file."""
        return 0 if self._file is None else self._file.rows

    def add(self, row: ArchivedJob) -> None:
        if self._file is None:
            from headrace.operate.archive.parquet import ArchiveFile

            self._file = ArchiveFile(self._folder.draft)
            self._name = f"jobs-{row.enqueued_at.astimezone(UTC):%Y%m%dT%H%M%S}-{row.id}"
        self._file.add(row)

    async def publish(self) -> None:
        """End the open file, then delete its jobs."""
        assert self._file is not None  # only called with rows
        self._file.close()
        self._file = None
        path = self._folder.publish(self._name)
        self.files.append(path.name)
        self.tell("has written")
        await self.delete(path)

    async def delete(self, path: Path) -> None:
        """Delete the jobs of a file from the store, as far as they are still as the file has them."""
        from headrace.operate.archive.parquet import count_rows, endings

        self._written += count_rows(path)
        for some in endings(path):
            await self._delete_some(some)
            self._checked += len(some)
            self.tell("deletes", self._written)
        self._folder.finish(path)

    async def _delete_some(self, ends: Sequence[ArchivedEnd]) -> None:
        same: list[JobId] = []
        states = {end.id: (end.state, end.at) for end in ends}
        for start in range(0, len(ends), dropped.PAGE):
            ids = [end.id for end in ends[start : start + dropped.PAGE]]
            # An operator may have retried a job since it was read. Then it is another end, which is not in the file.
            jobs = [job for job in await self._store.get(ids) if job is not None]
            same += [job.id for job in jobs if (job.state.value, job.finished_at) == states[job.id]]
            self.kept += sum((job.state.value, job.finished_at) != states[job.id] for job in jobs)
        # It may also be retried and end from here on. Such an end is later than each of these, and stays.
        ended_by = max(end.at for end in ends)
        others = [id for id in same if states[id][0] != JobState.DEAD]
        if others:
            self.moved += len(await self._store.delete(others, states=_PLAIN, ended_by=ended_by))
        # Each dead letter leaves a line in the log, as with every other way in which it is dropped.
        dead = [id for id in same if states[id][0] == JobState.DEAD]
        gone = await dropped.drop_dead(
            self._store, dead, "dead.delete", reason="archived", by=self._actor, ended_by=ended_by
        )
        self.moved += len(gone)

    def tell(self, what: str, total: int = 0) -> None:
        """Report the progress. `total` 0: how many jobs are still to be read is not known."""
        if self._progress is not None:
            self._progress(self._checked, total, f"{what} {self.rows:,} rows" if self.rows else what)


def _row(job: Job, task_of: TaskSource) -> ArchivedJob:
    from headrace.operate.archive.parquet import ArchivedJob
    from headrace.policy import fingerprint

    assert job.finished_at is not None  # only ended jobs are moved
    started, last = job.claimed_at, job.history[-1] if job.history else None
    failed = last is not None or job.state is JobState.DEAD
    return ArchivedJob(
        id=str(job.id),
        queue=job.queue,
        task=job.task,
        tenant=job.tenant,
        state=job.state.value,
        priority=job.priority,
        attempts=job.attempt,
        enqueued_at=job.enqueued_at,
        started_at=started,
        ended_at=job.finished_at,
        wait=(started - job.enqueued_at).total_seconds() if started is not None and job.attempt == 1 else None,
        run=None if started is None else (job.finished_at - started).total_seconds(),
        error=job.note if last is None else f"{last.kind}: {last.message}" if last.message else last.kind,
        fingerprint=fingerprint.of_job(job).id if failed else None,
        args=_json(shown.arguments(task_of(job.task), job)),
        result=None if job.result is None else _result(task_of(job.task), job),
    )


def _result(task: Task[..., Any] | None, job: Job) -> str:
    try:
        return _json(shown.result(task, job))
    except SerializationError as error:
        return _json({"unreadable": str(error)})  # One damaged result must not keep all others in the store.


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        return msgspec.json.encode({"unreadable": str(error)}).decode()


def _check_arrow() -> None:
    if find_spec("pyarrow") is None:
        raise ConfigError("Parquet files need pyarrow: pip install 'headrace[archive]'")


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
