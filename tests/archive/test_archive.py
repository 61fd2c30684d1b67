"""The archive: each ended job is in one file, exactly as it was, and no longer in the store."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from archive.rows import ALL, end_jobs, ended_in, files_in, hidden, move, parquet, rows_in
from conformance.kit import DEAD, failure, put, run_one, take
from headrace import Headrace
from headrace.errors import ConfigError
from headrace.model.job import JobId, JobState
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Filter, Page
from headrace.operate.archive import move as moving
from headrace.operate.archive.folder import ArchiveFolder
from headrace.operate.archive.move import ArchiveCut
from headrace.operate.operations import Operations
from headrace.store.audit import Audit
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from headrace.testing.clock import FakeClock

BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)
pack = msgspec.msgpack.encode


async def test_rows_are_what_the_jobs_were(store: Store, clock: FakeClock, tmp_path: Path) -> None:
    payload = pack(([1, "ä"], {"to": "x@example.com"}))
    [done] = await put(store, 1, task="mail", payload=payload, tenant="acme", priority=7)
    clock.advance(S)
    lease = await take(store)
    clock.advance(2 * S)
    await store.settle(lease.token, [(0, Finish(JobState.DONE, result=pack({"sent": 3})))])
    [dead] = await put(store, 1, task="charge", payload=payload)
    await run_one(store, Again(1, 0, due=timedelta(0), failure=failure()))
    await store.promote()
    await run_one(store, Finish(JobState.DEAD, note="max_attempts", failure=failure(2, "KeyError", "'x'"), failures=2))
    [cancelled] = await put(store)
    await store.cancel([cancelled], "enough")
    jobs = {str(job.id): job for job in await store.get([done, dead, cancelled]) if job is not None}
    archived = await move(store, tmp_path)
    assert (archived.jobs, archived.kept, len(archived.files)) == (3, 0, 1)
    rows = {row["id"]: row for row in rows_in(tmp_path)}
    assert rows.keys() == jobs.keys()
    for id, row in rows.items():
        job = jobs[id]
        assert (row["queue"], row["task"], row["tenant"]) == (job.queue, job.task, job.tenant)
        assert (row["state"], row["priority"], row["attempts"]) == (job.state.value, job.priority, job.attempt)
        times = (job.enqueued_at, job.claimed_at, job.finished_at)
        assert (row["enqueued_at"], row["started_at"], row["ended_at"]) == times
    row = rows[str(done)]
    assert (row["wait"], row["run"]) == (1.0, 2.0)
    assert msgspec.json.decode(row["args"]) == {"args": [1, "ä"], "kwargs": {"to": "x@example.com"}}
    assert msgspec.json.decode(row["result"]) == {"sent": 3}
    assert (row["error"], row["fingerprint"]) == (None, None)
    row = rows[str(dead)]
    assert row["error"] == "KeyError: 'x'"
    assert row["fingerprint"]
    assert (row["wait"], row["result"]) == (None, None)  # It had two attempts.
    row = rows[str(cancelled)]
    assert (row["started_at"], row["run"], row["error"]) == (None, None, "enough")
    assert await ended_in(store) == set()
    assert hidden(tmp_path) == []


async def test_jobs_that_have_not_ended_or_ended_lately_stay(store: Store, clock: FakeClock, tmp_path: Path) -> None:
    old = await end_jobs(store, 4)
    clock.advance(timedelta(days=3))
    dead = await end_jobs(store, 2, [DEAD])
    clock.advance(timedelta(days=3))
    young = await end_jobs(store, 4)
    [ready] = await put(store, queue="other")
    [running] = await put(store)
    await take(store)
    cut = ArchiveCut(done=clock.now() - timedelta(days=2), dead=clock.now() - timedelta(days=5))
    assert (await move(store, tmp_path, cut)).jobs == 4
    assert {row["id"] for row in rows_in(tmp_path)} == {str(id) for id in old}
    assert await ended_in(store) == {*dead, *young}
    assert None not in await store.get([ready, running])


async def test_one_queue(store: Store, tmp_path: Path) -> None:
    mine, others = await end_jobs(store, 5, queue="mine"), await end_jobs(store, 5, queue="theirs")
    assert (await move(store, tmp_path, queue="mine")).jobs == 5
    assert {row["id"] for row in rows_in(tmp_path)} == {str(id) for id in mine}
    assert await ended_in(store) == set(others)


async def test_files_have_a_bounded_number_of_rows(store: Store, tmp_path: Path) -> None:
    ids = [id for count in (1, 230, 20) for id in await end_jobs(store, count)]
    archived = await move(store, tmp_path, rows=100)
    assert archived.jobs == 251
    assert [path.name for path in files_in(tmp_path)] == sorted(archived.files)
    assert sorted(parquet.read_metadata(path).num_rows for path in files_in(tmp_path)) == [51, 100, 100]
    assert Counter(row["id"] for row in rows_in(tmp_path)) == Counter(str(id) for id in ids)
    assert await ended_in(store) == set()


async def test_the_progress_of_deletions_has_a_total(store: Store, tmp_path: Path) -> None:
    """The bar shows how much of each file is deleted, and while it reads that the rest is not known."""
    await end_jobs(store, 250)
    steps: list[tuple[int, int, str]] = []
    await move(store, tmp_path, rows=100, progress=lambda *step: steps.append(step))
    deletions = [(done, total) for done, total, what in steps if what == "deletes"]
    assert deletions == [(100, 100), (200, 200), (250, 250)]
    assert {total for _, total, what in steps if what != "deletes"} == {0}


async def test_a_second_call_adds_files_and_changes_none(store: Store, tmp_path: Path) -> None:
    first = await end_jobs(store, 3)
    await move(store, tmp_path)
    before = {path.name: path.read_bytes() for path in files_in(tmp_path)}
    assert (await move(store, tmp_path)).files == []
    second = await end_jobs(store, 3)
    await move(store, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert Counter(row["id"] for row in rows_in(tmp_path)) == Counter(str(id) for id in (*first, *second))


async def test_a_job_that_is_retried_meanwhile_stays_in_the_store(
    store: Store, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, again, gone = await end_jobs(store, 3, [DONE])
    delete = moving._Run.delete

    async def act_and_delete(run: moving._Run, path: Path) -> None:
        clock.advance(S)
        await store.retry([ended, again])
        await run_one(store)
        await store.delete([gone])
        await delete(run, path)

    with monkeypatch.context() as patch:
        patch.setattr(moving._Run, "delete", act_and_delete)
        archived = await move(store, tmp_path)
    assert (archived.jobs, archived.kept) == (0, 2)
    left = [job for job in await store.get([ended, again, gone]) if job is not None]
    assert sorted(job.state for job in left) == [JobState.DONE, JobState.READY]
    # The new end is archived by the next call, besides the earlier one.
    [twice] = [job.id for job in left if job.state is JobState.DONE]
    assert (await move(store, tmp_path)).jobs == 1
    counts = Counter(row["id"] for row in rows_in(tmp_path))
    assert counts == {str(id): 2 if id == twice else 1 for id in (ended, again, gone)}


# ── on one store ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [DONE, DEAD])
async def test_an_end_that_comes_just_before_the_deletion_is_not_lost(
    clock: FakeClock, tmp_path: Path, end: Finish
) -> None:
    class Racing(MemoryStore):
        races = True

        async def delete(self, ids: Sequence[JobId], **how: Any) -> frozenset[JobId]:
            if self.races:
                clock.advance(S)
                await self.retry(ids)
                await run_one(self, end)
            return await super().delete(ids, **how)

    store = Racing(clock=clock)
    [id] = await end_jobs(store, 1, [end])
    assert (await move(store, tmp_path)).jobs == 0
    assert [job.id for job in (await store.find(Filter())).jobs] == [id]
    store.races = False
    assert (await move(store, tmp_path)).jobs == 1
    assert len({row["ended_at"] for row in rows_in(tmp_path)}) == 2


async def test_arguments_are_masked_as_they_are_elsewhere(tmp_path: Path) -> None:
    app = Headrace("memory://")

    @app.task(name="login", redact=("password",))
    async def login(user: str, password: str) -> None: ...

    store = MemoryStore()
    done = Finish(JobState.DONE, result=pack({"user": "ada", "text": "swordfish is right", "password": "other"}))
    await end_jobs(store, 1, [done], task="login", payload=pack((["ada"], {"password": "swordfish"})))
    await Operations(store, task_of=app.tasks.get).archive.move(tmp_path, ALL)
    [path] = files_in(tmp_path)
    assert b"swordfish" not in path.read_bytes()
    [row] = rows_in(tmp_path)
    assert msgspec.json.decode(row["args"])["args"] == ["ada"]
    assert msgspec.json.decode(row["result"]) == {"user": "ada", "text": "••• is right", "password": "•••"}


async def test_bytes_that_cannot_be_read_do_not_stop_the_others(tmp_path: Path) -> None:
    store = MemoryStore()
    await end_jobs(store, 1, [Finish(JobState.DONE, result=b"\xc1\x00")], payload=b"\xc1", options=b"\xc1")
    assert (await move(store, tmp_path)).jobs == 1
    [row] = rows_in(tmp_path)
    assert "not shown" in row["args"]
    assert row["result"]


async def test_dead_letters_leave_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    [id] = await end_jobs(store, 1, [DEAD])
    with caplog.at_level(logging.WARNING, "headrace.audit"):
        await move(store, tmp_path)
    [line] = [msgspec.json.decode(record.getMessage()) for record in caplog.records if record.name == "headrace.audit"]
    assert (line["event"], line["id"], line["reason"]) == ("dead.delete", str(id), "archived")


async def test_a_call_leaves_one_entry_in_the_audit_log(tmp_path: Path) -> None:
    store = MemoryStore()
    await end_jobs(store, 10)
    await move(store, tmp_path, rows=4)
    await move(store, tmp_path)
    [entry] = [entry for entry in await Audit(store).read(BEGIN) if entry.action == "jobs.archive"]
    assert (entry.who, entry.jobs) == ("tester", 10)
    assert str(tmp_path) in entry.what


async def test_pages_of_large_jobs_are_short(tmp_path: Path) -> None:
    class Counting(MemoryStore):
        largest = 0

        async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
            page = await super().find(where, before=before, limit=limit)
            self.largest = max(self.largest, sum(len(job.payload) for job in page.jobs))
            return page

    store = Counting()
    large = 400 * 1024
    for _ in range(30):
        await end_jobs(store, 10, [DONE], payload=pack(([], {"x": "y" * large})))
    assert (await move(store, tmp_path)).jobs == 300
    # The first page may be large, because nothing is known of the jobs yet. The later ones are not.
    assert store.largest <= 101 * large


async def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with ArchiveFolder(tmp_path).locked(), pytest.raises(ConfigError, match="another process"):
        await move(MemoryStore(), tmp_path)
    await move(MemoryStore(), tmp_path)


async def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[archive\]'"):
        await move(MemoryStore(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_never_replaces_another(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    names: list[str] = []
    with folder.locked():
        for number in range(3):
            folder.draft.write_text(str(number))
            names.append(folder.publish("jobs").name)
    assert names == ["jobs.parquet", "jobs-2.parquet", "jobs-3.parquet"]
    assert [(tmp_path / name).read_text() for name in names] == ["0", "1", "2"]
