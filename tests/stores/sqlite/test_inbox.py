"""The inbox: what goes there, and that no look, claim, repetition, crash or order shows that a job is still in it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.kit import batch, claim, counts, find_all, ids, key, look, new, put, settle_all, state, take
from headrace.errors import SchemaMismatch
from headrace.model.job import Batch, JobId, JobState, NewJob, UniqueLock, job_id
from headrace.model.records import CancelAnswer
from headrace.store.sqlite import inbox
from headrace.store.sqlite.engine import writer as writing
from headrace.store.sqlite.store import SqliteStore
from stores.sqlite.sync_code import SyncCode
from stores.sqlite.test_processes import child, line, rest, tell

LONG = 60
"""Seconds that no test waits: an event ends every wait."""
IDLE = writing._IDLE
FRAME = 4096 + 24
"""Bytes of a page in the log, with its header."""


@pytest.fixture(autouse=True)
def never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the inbox stays there until a call needs it."""
    monkeypatch.setattr(writing, "_IDLE", 3600.0)


@pytest.fixture
def eye(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """To look at the tables with."""
    conn = sqlite3.connect(file, isolation_level=None)
    yield conn
    conn.close()


@asynccontextmanager
async def another(url: str) -> AsyncGenerator[SqliteStore]:
    """A second store on the file."""
    store = SqliteStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def rows(eye: sqlite3.Connection, table: str) -> int:
    return eye.execute(f"select count(*) from headrace_{table}").fetchone()[0]


def pages_of_log(file: Path) -> int:
    """Pages up to the first one that has another salt than the log: behind it are old pages, or room."""
    log = Path(f"{file}-wal").read_bytes()
    salt, frames = log[16:24], range(32, len(log), FRAME)
    return next((n for n, at in enumerate(frames) if log[at + 8 : at + 16] != salt), len(frames))


def put_here(blocking: SyncCode, job: NewJob | None = None) -> JobId:
    """One job as sync code enqueues it."""
    made = batch(job or new())
    assert blocking.enqueue(made).existing == {}
    return job_id(made.id, 0)


# ── what goes there ──────────────────────────────────────────────────────────


async def test_a_plain_job_is_one_row_and_a_claim_moves_it(
    sqlite_store: SqliteStore, blocking: SyncCode, eye: sqlite3.Connection
):
    made = [put_here(blocking), *await put(sqlite_store)]
    assert [rows(eye, table) for table in ("inbox", "batch", "job", "ready", "depth")] == [2, 0, 0, 0, 0]
    assert ids(await claim(sqlite_store)) == made
    assert [rows(eye, table) for table in ("inbox", "batch", "job", "ready", "depth")] == [0, 2, 2, 0, 1]


async def test_a_plain_job_is_one_page_of_the_log(blocking: SyncCode, eye: sqlite3.Connection, file: Path):
    put_here(blocking)
    eye.execute("pragma wal_checkpoint(truncate)").fetchall()
    for _ in range(100):
        put_here(blocking, new(payload=bytes(100)))
    # A new page of the table is three: the page, the one above it, and the first one of the file.
    assert pages_of_log(file) < 125


@pytest.mark.parametrize(
    "job",
    [
        new(key=key("k")),
        new(unique=UniqueLock("u", frozenset({JobState.READY}))),
        new(due=timedelta(hours=1)),
        new(limits=("gpu",)),
        new(payload=bytes(2000)),
        new(options=bytes(2000)),
    ],
)
async def test_other_jobs_go_to_the_tables(
    sqlite_store: SqliteStore, blocking: SyncCode, eye: sqlite3.Connection, job: NewJob
):
    put_here(blocking)
    blocking.enqueue(batch(job))
    assert [rows(eye, table) for table in ("inbox", "job")] == [0, 2]
    await sqlite_store.enqueue(batch(new(), new()))
    assert [rows(eye, table) for table in ("inbox", "job")] == [0, 4]


async def test_it_is_never_long(blocking: SyncCode, sqlite_store: SqliteStore, eye: sqlite3.Connection):
    made = [put_here(blocking) for _ in range(inbox.MOST)]
    assert rows(eye, "inbox") == inbox.MOST
    made.append(put_here(blocking))
    assert rows(eye, "inbox") == 0
    for _ in range(inbox.MOST - 1):
        made += await put(sqlite_store)
    assert rows(eye, "inbox") == inbox.MOST - 1
    made += await put(sqlite_store)
    assert rows(eye, "inbox") == 0
    assert ids(await claim(sqlite_store, 1000)) == made


# ── order ────────────────────────────────────────────────────────────────────


async def test_calls_keep_their_order(sqlite_store: SqliteStore, blocking: SyncCode):
    made: list[JobId] = []
    for _ in range(3):
        made += [put_here(blocking), *await put(sqlite_store)]
        made += await put(sqlite_store, 3)
    made.append(put_here(blocking))
    assert ids(await claim(sqlite_store)) == made


async def test_an_id_that_is_lower_but_came_later_stays_behind(sqlite_store: SqliteStore, blocking: SyncCode):
    early, late = batch(new()), batch(new())
    assert early.id < late.id
    blocking.enqueue(late)
    blocking.enqueue(early)
    assert ids(await claim(sqlite_store)) == [job_id(late.id, 0), job_id(early.id, 0)]


async def test_lanes_and_queues_of_one_fold(sqlite_store: SqliteStore, blocking: SyncCode):
    low = put_here(blocking, new(priority=-5))
    other = put_here(blocking, new(queue="other", payload=b"o", options=b"p"))
    turns = [put_here(blocking, new(tenant=tenant)) for tenant in ("a", "a", "b")]
    high = put_here(blocking, new(priority=5))
    queues = (await sqlite_store.stats()).queues
    assert {queue.queue: (queue.ready, queue.enqueued_total) for queue in queues} == {
        "default": (5, 5),
        "other": (1, 1),
    }
    assert ids(await claim(sqlite_store)) == [high, *turns, low]
    [job] = (await take(sqlite_store, 1, "other")).jobs
    assert (job.id, job.payload, job.options) == (other, b"o", b"p")


# ── repetition ───────────────────────────────────────────────────────────────


async def _again(store: SqliteStore, blocking: SyncCode, file: Path, made: Batch, how: str) -> None:
    if how == "here":
        assert blocking.enqueue(made).existing == {}
    elif how == "store":
        assert (await store.enqueue(made)).existing == {}
    else:
        conn = sqlite3.connect(file, isolation_level=None)
        conn.execute("begin immediate")
        assert store.enqueue_in(conn, made).existing == {}
        conn.execute("commit")
        conn.close()


@pytest.mark.parametrize("first", ["here", "store", "tx"])
@pytest.mark.parametrize("second", ["here", "store", "tx"])
async def test_a_repeated_call_makes_no_second_job(
    sqlite_store: SqliteStore, blocking: SyncCode, file: Path, first: str, second: str
):
    before, after = batch(new()), batch(new())
    for how in (first, second, second):
        await _again(sqlite_store, blocking, file, before, how)
    await _again(sqlite_store, blocking, file, after, first)
    assert await counts(sqlite_store) == {"ready": 2}
    lease = await take(sqlite_store, 1)
    assert ids(lease) == [job_id(before.id, 0)]
    for how in (second, first):  # of a running job
        await _again(sqlite_store, blocking, file, before, how)
    assert await counts(sqlite_store) == {"ready": 1, "running": 1}
    await settle_all(sqlite_store, lease)
    await _again(sqlite_store, blocking, file, before, second)  # of a finished one
    assert ids(await claim(sqlite_store)) == [job_id(after.id, 0)]
    [stats] = (await sqlite_store.stats()).queues
    assert (stats.enqueued_total, stats.done_total, stats.ready) == (2, 1, 0)


# ── looks and moves ──────────────────────────────────────────────────────────


async def test_every_look_sees_it(sqlite_store: SqliteStore, blocking: SyncCode):
    made = put_here(blocking, new(tenant="t", payload=b"{1}", options=b"o", priority=3))
    shown = await look(sqlite_store, made)
    assert await counts(sqlite_store) == {"ready": 1}  # which folds
    assert await look(sqlite_store, made) == shown
    made = put_here(blocking)
    assert (await find_all(sqlite_store))[0].id == made
    put_here(blocking)
    [one, two] = await sqlite_store.lanes(["default"])
    assert one.jobs + two.jobs == 3
    made = put_here(blocking)
    found = await sqlite_store.ahead(made)
    assert found is not None
    assert (found.lane, found.higher) == (2, 1)


async def test_get_does_not_wait_for_a_foreign_writer(
    sqlite_store: SqliteStore, blocking: SyncCode, eye: sqlite3.Connection
):
    made = put_here(blocking)
    eye.execute("begin immediate")
    assert await state(sqlite_store, made) is JobState.READY
    assert await state(sqlite_store, JobId(job_id(made, 1))) is None
    counted = asyncio.ensure_future(counts(sqlite_store))
    await sqlite_store.get([made])
    assert not counted.done()
    eye.execute("commit")
    assert await counted == {"ready": 1}


async def test_it_can_be_cancelled_and_deleted(sqlite_store: SqliteStore, blocking: SyncCode):
    one, two, three = (put_here(blocking) for _ in range(3))
    assert await sqlite_store.cancel([one]) == {one: CancelAnswer.CANCELLED}
    four = put_here(blocking)
    assert await sqlite_store.delete([two, four]) == {two, four}
    assert [await state(sqlite_store, id) for id in (one, two, four)] == [JobState.CANCELLED, None, None]
    assert ids(await claim(sqlite_store)) == [three]


async def test_a_lock_and_a_replacement_meet_it_in_order(sqlite_store: SqliteStore, blocking: SyncCode):
    first = put_here(blocking)
    held = batch(new(unique=UniqueLock("u", frozenset({JobState.READY}))))
    blocking.enqueue(held)
    last = put_here(blocking)
    assert ids(await claim(sqlite_store)) == [first, job_id(held.id, 0), last]


async def test_a_user_who_rolls_back_leaves_it_where_it_was(
    sqlite_store: SqliteStore, blocking: SyncCode, eye: sqlite3.Connection
):
    made = put_here(blocking)
    eye.execute("begin immediate")
    sqlite_store.enqueue_in(eye, batch(new()))
    assert rows(eye, "inbox") == 0
    eye.execute("rollback")
    assert rows(eye, "inbox") == 1
    assert ids(await claim(sqlite_store)) == [made]


# ── processes ────────────────────────────────────────────────────────────────


async def test_another_process_claims_what_a_killed_one_has_appended(url: str, sqlite_store: SqliteStore):
    async with child(url, "enqueue") as other:
        await tell(other)
        assert await line(other) == "enqueued"
        other.kill()
        await other.wait()
    assert len(ids(await claim(sqlite_store))) == 1


async def test_a_worker_process_runs_what_this_one_has_appended(
    url: str, sqlite_store: SqliteStore, blocking: SyncCode
):
    made = [put_here(blocking) for _ in range(20)]
    async with child(url, "work") as one, child(url, "work") as two:
        said = await asyncio.gather(rest(one), rest(two))
    assert sorted(word for words in said for word in words) == sorted(map(str, made))


async def test_two_stores_append_in_turns(url: str, sqlite_store: SqliteStore):
    async with another(url) as second:
        made = [id for store in (sqlite_store, second) * 5 for id in await put(store)]
        assert ids(await claim(second, 4)) == made[:4]
        made += await put(second)
        made += await put(sqlite_store)
        assert ids(await claim(sqlite_store)) == made[4:]


async def test_an_idle_writer_folds(url: str, monkeypatch: pytest.MonkeyPatch):
    """Readers of the tables, and processes of an earlier version, find the job soon."""
    monkeypatch.setattr(writing, "_IDLE", IDLE)
    folded = threading.Event()
    idle = writing.Writer._idle

    def noted(self: writing.Writer, conn: sqlite3.Connection) -> None:
        idle(self, conn)
        if [rows(conn, table) for table in ("inbox", "job", "ready")] == [0, 1, 1]:
            folded.set()

    monkeypatch.setattr(writing.Writer, "_idle", noted)
    async with another(url) as store:
        put_here(SyncCode(store))
        assert await asyncio.to_thread(folded.wait, LONG)


async def test_closing_folds(url: str, file: Path):
    async with another(url) as store:
        made = await put(store)
    conn = sqlite3.connect(file)
    assert [rows(conn, table) for table in ("inbox", "ready")] == [0, 1]
    conn.close()
    async with another(url) as store:
        assert ids(await claim(store)) == made


async def test_closing_beside_a_foreign_writer_leaves_it(url: str, file: Path):
    foreign = sqlite3.connect(file, isolation_level=None)
    async with another(url) as store:
        made = await put(store)
        foreign.execute("begin immediate")
    foreign.execute("rollback")
    assert rows(foreign, "inbox") == 1
    foreign.close()
    async with another(url) as store:
        assert ids(await claim(store)) == made


async def test_a_store_that_does_not_know_the_schema_leaves_it(url: str, file: Path):
    async with another(url) as store:
        await put(store, 2)
    conn = sqlite3.connect(file, isolation_level=None)
    conn.execute("insert into headrace_migration values (9999, '9999_later', 0)")
    conn.execute("insert into headrace_inbox values (1, x'00', 0, 'default', 0, '', 't', null, x'')")
    store = SqliteStore(url)
    with pytest.raises(SchemaMismatch):
        await store.open()
    assert rows(conn, "inbox") == 1
    conn.close()
