"""Unsorted ends: what is appended, when it is sorted in, and that no look or verb shows that it is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from conformance.kit import counts, find_all, ids, new, put, put_jobs, settle_all, state, states, take
from conformance.test_gates import chain, waiting
from conftest import opened
from headrace.model.job import JobId, JobState, UniqueLock
from headrace.model.records import CancelAnswer, Filter, Retention
from headrace.store.contract import Store
from headrace.store.sqlite import unsorted
from headrace.store.sqlite.engine import writer as writing
from headrace.store.sqlite.store import SqliteStore

DONE, READY = JobState.DONE, JobState.READY
CHAINS = 20
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

Links = list[list[JobId]]
"""By their place in the chains."""


@pytest.fixture(autouse=True)
def never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was appended stays until a call needs it."""
    monkeypatch.setattr(writing, "_IDLE", 3600.0)


@pytest.fixture
def eye(file: Path, sqlite_store: SqliteStore) -> Generator[sqlite3.Connection]:
    """To look at the tables with."""
    with closing(sqlite3.connect(file)) as conn:
        yield conn


def rows(eye: sqlite3.Connection, table: str) -> int:
    return eye.execute(f"select count(*) from headrace_{table}").fetchone()[0]


async def chains(store: Store, length: int) -> Links:
    made = [await chain(store, length) for _ in range(CHAINS)]
    return [list(links) for links in zip(*made, strict=True)]


async def go_on(store: Store, times: int = 1) -> None:
    """Run the next job of every chain."""
    for _ in range(times):
        await settle_all(store, await take(store, 4 * CHAINS))


async def half_done(store: Store) -> Links:
    """Chains whose second and third jobs have ended, in two settlements that are not sorted in."""
    links = await chains(store, 4)
    await go_on(store, 3)
    return links


# ── what is appended ─────────────────────────────────────────────────────────


async def test_the_ends_of_many_chains_are_one_row_until_many_settlements_are_sorted_in(
    sqlite_store: SqliteStore, eye: sqlite3.Connection
):
    links = await chains(sqlite_store, unsorted.MOST + 2)
    await go_on(sqlite_store)
    assert (rows(eye, "unsorted"), rows(eye, "ending")) == (0, CHAINS)  # batches begin with these
    await go_on(sqlite_store, unsorted.MOST - 1)
    assert (rows(eye, "unsorted"), rows(eye, "ending")) == (unsorted.MOST - 1, CHAINS)
    await go_on(sqlite_store)
    assert (rows(eye, "unsorted"), rows(eye, "ending")) == (0, CHAINS * (unsorted.MOST + 1))
    assert await counts(sqlite_store) == {"ready": CHAINS}
    assert await states(sqlite_store, [job for some in links[:-1] for job in some]) == [DONE] * rows(eye, "ending")


async def test_single_jobs_and_neighbours_are_sorted_in_at_once(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    for _ in range(2 * CHAINS):
        await put(sqlite_store)
    await put_jobs(sqlite_store, *(new(tenant=str(number % 2)) for number in range(4 * CHAINS)))
    await settle_all(sqlite_store, await take(sqlite_store, 3 * CHAINS))
    await settle_all(sqlite_store, await take(sqlite_store, 3 * CHAINS))
    assert (rows(eye, "unsorted"), await counts(sqlite_store)) == (0, {})


async def test_closing_sorts_them_in(url: str, file: Path):
    async with opened(SqliteStore(url)) as store:
        await half_done(store)
    with closing(sqlite3.connect(file)) as conn:
        assert (rows(conn, "unsorted"), rows(conn, "ending")) == (0, 3 * CHAINS)


# ── what looks show ──────────────────────────────────────────────────────────


async def test_jobs_look_the_same_before_and_after(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    links = [job for some in await half_done(sqlite_store) for job in some]
    before = await sqlite_store.get(links), await sqlite_store.ended(BEGINNING)
    assert rows(eye, "unsorted") == 2
    await sqlite_store.stats()
    assert rows(eye, "unsorted") == 0
    assert (await sqlite_store.get(links), await sqlite_store.ended(BEGINNING)) == before
    assert [job.state for job in before[0] if job is not None] == [DONE] * 3 * CHAINS + [READY] * CHAINS
    assert [ending.id for ending in before[1]] == [job for at in range(3) for job in links[at * CHAINS :][:CHAINS]]


async def test_ends_after_a_moment(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    links = await half_done(sqlite_store)
    all_ends = await sqlite_store.ended(BEGINNING)
    later = await sqlite_store.ended(all_ends[-1].at)
    assert [ending.id for ending in later] == links[2]
    assert [ending.id for ending in await sqlite_store.ended(BEGINNING, 2 * CHAINS)] == links[0] + links[1]
    assert rows(eye, "unsorted") == 2


async def test_a_search_finds_them(sqlite_store: SqliteStore):
    await half_done(sqlite_store)
    found = await find_all(sqlite_store, Filter(states=frozenset({DONE})))
    assert len(found) == 3 * CHAINS
    assert await find_all(sqlite_store, Filter(states=frozenset({JobState.RUNNING}))) == []


async def test_another_process_sees_them(sqlite_store: SqliteStore, url: str):
    links = await half_done(sqlite_store)
    async with opened(SqliteStore(url)) as other:
        assert await states(other, links[2]) == [DONE] * CHAINS


# ── what verbs do ────────────────────────────────────────────────────────────

Verb = Callable[[Store, JobId], Awaitable[object]]


async def _retry(store: Store, job: JobId) -> None:
    assert await store.retry([job]) == {job}
    assert await state(store, job) is READY


async def _delete(store: Store, job: JobId) -> None:
    assert await store.delete([job]) == {job}
    assert await state(store, job) is None


async def _cancel(store: Store, job: JobId) -> None:
    assert await store.cancel([job]) == {job: CancelAnswer.FINISHED}
    assert await state(store, job) is DONE


async def _follow(store: Store, job: JobId) -> None:
    [follower] = await put_jobs(store, waiting(job))
    assert await state(store, follower) is READY


@pytest.mark.parametrize("verb", [_retry, _delete, _cancel, _follow])
async def test_verbs_find_the_end(verb: Verb, sqlite_store: SqliteStore, eye: sqlite3.Connection):
    links = await half_done(sqlite_store)
    assert rows(eye, "unsorted") == 2
    await verb(sqlite_store, links[1][7])
    others = [job for some in links[:3] for job in some if job != links[1][7]]
    assert await states(sqlite_store, others) == [DONE] * len(others)
    await go_on(sqlite_store)
    assert await states(sqlite_store, links[3]) == [DONE] * CHAINS


async def test_a_lock_is_free_when_its_job_has_ended(sqlite_store: SqliteStore, eye: sqlite3.Connection):
    lock = UniqueLock("one", states=frozenset({READY, JobState.RUNNING, JobState.BLOCKED}))
    await chains(sqlite_store, 3)
    [first] = await put_jobs(sqlite_store, new())
    [holder] = await put_jobs(sqlite_store, waiting(first, unique=lock))
    await go_on(sqlite_store, 2)
    assert await state(sqlite_store, holder) is DONE
    [fresh] = await put_jobs(sqlite_store, new(unique=lock))
    assert await state(sqlite_store, fresh) is READY


async def test_retention_drops_them(sqlite_store: SqliteStore):
    links = await half_done(sqlite_store)
    pruned = await sqlite_store.prune(Retention(done=timedelta(0), dead=timedelta(0)))
    assert pruned.jobs == 3 * CHAINS
    assert await states(sqlite_store, links[2]) == [None] * CHAINS
    assert ids(await take(sqlite_store, CHAINS)) == links[3]
