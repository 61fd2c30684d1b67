"""Chains in a file: one row each, whose beginning moves on, and what files of the version before have instead."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from conformance.kit import DEAD, counts, ids, new, put, run_one, settle_all, states, take
from conformance.test_gates import chain, waiting
from conftest import opened
from headrace.model.job import Batch, JobId, JobState, job_id, new_batch
from headrace.store.sqlite.engine.migrate import steps
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.fairness import picker
from headrace.store.sqlite.store import SqliteStore

DONE, READY, BLOCKED, GONE = JobState.DONE, JobState.READY, JobState.BLOCKED, JobState.CANCELLED


@pytest.fixture
def eye(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """To look at the tables with."""
    with closing(sqlite3.connect(file)) as conn:
        yield conn


def runs(eye: sqlite3.Connection) -> list[tuple[int, int]]:
    """The chains, as places in their batches."""
    return eye.execute("select lo & 65535, hi & 65535 from headrace_chain order by hi").fetchall()


def rows(eye: sqlite3.Connection, table: str) -> int:
    return eye.execute(f"select count(*) from headrace_{table}").fetchone()[0]


async def test_a_chain_is_one_row_that_becomes_shorter(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    links = await chain(sqlite_store, 100)
    assert (runs(eye), rows(eye, "blocked")) == ([(1, 99)], 0)
    for at in range(99):
        assert await run_one(sqlite_store) == links[at]
        assert runs(eye) == ([(at + 2, 99)] if at < 98 else [])
    assert await counts(sqlite_store) == {"ready": 1}


async def test_a_dead_job_leaves_its_chain_as_it_is(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    await chain(sqlite_store, 5)
    await run_one(sqlite_store, DEAD)
    assert (runs(eye), rows(eye, "blocked")) == ([(1, 4)], 0)


async def test_a_link_that_leaves_makes_two_chains_of_which_one_ends(
    sqlite_store: SqliteStore, eye: sqlite3.Connection
):
    links = await chain(sqlite_store, 9)
    await sqlite_store.cancel([links[4]])
    assert (runs(eye), rows(eye, "blocked")) == ([(1, 3)], 0)
    assert await states(sqlite_store, links) == [READY, *[BLOCKED] * 3, *[GONE] * 5]


async def test_several_jobs_behind_one_are_a_run_and_no_chains(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    id = new_batch()
    await sqlite_store.enqueue(Batch(id, [new(), *[waiting(job_id(id, 0))] * 50]))
    assert (runs(eye), rows(eye, "blocked")) == ([], 1)


async def test_single_successors_are_chains_of_one(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    id = new_batch()
    jobs = [new(), waiting(job_id(id, 0), tenant="a"), new(), waiting(job_id(id, 2))]
    await sqlite_store.enqueue(Batch(id, jobs))
    assert (runs(eye), rows(eye, "blocked")) == ([(1, 1), (3, 3)], 0)


async def test_jobs_that_stand_alone_end_beside_chains(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    """Neighbours of a chain in the order of keys, before and behind it."""
    await put(sqlite_store, 3)
    links = await chain(sqlite_store, 3)
    await put(sqlite_store, 3)
    await settle_all(sqlite_store, await take(sqlite_store))
    assert runs(eye) == [(2, 2)]
    assert ids(await take(sqlite_store)) == [links[1]]


async def test_a_lane_of_many_ranges_is_read_in_several_steps(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(picker, "_RANGES", 5)
    first = [await chain(sqlite_store, 2) for _ in range(23)]
    assert ids(await take(sqlite_store, 22)) == [links[0] for links in first[:22]]
    assert ids(await take(sqlite_store, 22)) == [first[22][0]]


async def test_a_claim_beside_a_settlement_finds_what_that_releases(sqlite_store: SqliteStore):
    """A worker of few chains settles and claims at the same moment. Without this, each such claim was in vain."""
    links = await chain(sqlite_store, 3)
    lease = await take(sqlite_store)
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: Tx) -> None:
        begun.set()
        go_on.wait(60)

    held = asyncio.create_task(sqlite_store._write(hold))
    await asyncio.to_thread(begun.wait, 60)
    settled = asyncio.create_task(settle_all(sqlite_store, lease))
    claimed = asyncio.create_task(take(sqlite_store))
    await asyncio.sleep(0)  # both are in line
    go_on.set()
    assert ids(await claimed) == [links[1]]
    await asyncio.gather(held, settled)


def version_before(file: Path, links: int) -> list[JobId]:
    """A file as the version before left it, with a chain whose first job is ready."""
    batch = new_batch()
    schema = files("headrace.store.sqlite") / "schema"
    with closing(sqlite3.connect(file)) as conn:
        conn.execute("create table headrace_migration (version integer primary key, name text, taken_at integer)")
        for number, name in steps():
            if number < 15:
                conn.executescript((schema / name).read_text(encoding="utf-8"))
                conn.execute("insert into headrace_migration values (?, ?, 0)", (number, name.removesuffix(".sql")))
        conn.execute("insert into headrace_batch (seq, id, enqueued_at) values (1, ?, 5)", (batch.bytes,))
        conn.execute("insert into headrace_queue values (1, 'default')")
        for key in range(1 << 16, (1 << 16) + links):
            conn.execute("insert into headrace_job values (?, 'default', 0, '', 0, null, 't', x'7b7d', null)", (key,))
            if key > 1 << 16:
                conn.execute(
                    "insert into headrace_blocked values (?, ?, ?, 'done', null, null, null, 'default', 0, '', 0, 0, 0, 0, 0, null)",
                    (key, key - 1, key),
                )
        conn.execute("insert into headrace_ready values (1 * 4096 + 1000, '', 0, 65536, 65536, 0, 0, 0, 0, null)")
        conn.execute("insert into headrace_depth values ('default', 1, 0, 0, 0, 0, 0, ?, ?)", (links, links - 1))
        conn.commit()
    return [job_id(batch, ord) for ord in range(links)]


async def test_a_chain_of_the_version_before_goes_on(url: str, file: Path):
    links = version_before(file, 5)
    async with opened(SqliteStore(url)) as store:
        later = new_batch()
        await store.enqueue(Batch(later, [waiting(links[4])]))
        new_links = await chain(store, 3)
        assert [await run_one(store) for _ in range(2)] == [links[0], links[1]]
        assert await states(store, links) == [DONE, DONE, READY, BLOCKED, BLOCKED]
        await store.cancel([links[3]])
        assert await states(store, [*links[2:], job_id(later, 0)]) == [READY, GONE, GONE, GONE]
        assert {await run_one(store) for _ in range(4)} == {links[2], *new_links}
