"""Wake-up: a hint travels from store to store in milliseconds; polling stands behind it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.model.job import Due
from headrace.model.lane import Lane
from headrace.model.outcome import Again
from headrace.store.postgres import wakeup
from headrace.store.postgres.driver import asyncpg
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs.settle import hints_of
from headrace.store.postgres.wakeup import ALL
from stores.postgres.kit import a_batch, claim, put, take

LONG = 60
"""Seconds longer than any test waits. A test without a hint runs into its timeout."""


async def listening(store: PostgresStore, queue: str = "default") -> asyncio.Task[bool]:
    """A sleeper whose LISTEN is in force."""
    assert await claim(store, queue=queue) is None
    # The first wait ends when the ear is open, in case something was said before.
    assert await store.wait([queue], LONG)
    assert await claim(store, queue=queue) is None
    sleeper = asyncio.create_task(store.wait([queue], LONG))
    await asyncio.sleep(0)
    return sleeper


async def test_another_store_wakes_the_sleeper(pg: PostgresStore, url: str):
    sleeper = await listening(pg)
    other = PostgresStore(url)
    await other.open()
    await other.enqueue(a_batch())
    assert await sleeper
    await other.close()
    assert await claim(pg) is not None


async def test_a_lost_hint_is_repeated_where_jobs_wait(pg: PostgresStore, url: str):
    sleeper = await listening(pg)
    other = PostgresStore(url)
    await other.open()
    await other.enqueue(a_batch())
    assert await sleeper
    # This worker does not claim after the hint.
    pg._server.bell.seen = pg._server.bell.count
    sleeper, empty = (asyncio.create_task(pg.wait([queue], LONG)) for queue in ("default", "empty"))
    await asyncio.wait([sleeper], timeout=0.05)
    assert not sleeper.done()
    await other.repeat_hints(["default", "empty"])
    assert await sleeper
    assert not empty.done()
    empty.cancel()
    await other.close()


async def test_the_same_store_wakes_the_sleeper(pg: PostgresStore):
    sleeper = await listening(pg)
    await put(pg)
    assert await sleeper


async def test_a_commit_wakes_the_sleeper(pg: PostgresStore, url: str):
    """When a user's transaction commits is not known, so hints are repeated for a while."""
    sleeper = await listening(pg)
    other = PostgresStore(url)
    await other.open()
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await other.aenqueue_in(connection, a_batch())
    while await claim(pg) is None:
        assert await sleeper
        sleeper = asyncio.create_task(pg.wait(["default"], LONG))
    sleeper.cancel()
    await connection.close()
    await other.close()


async def test_a_commit_just_before_the_store_closes_wakes_the_sleeper(pg: PostgresStore, url: str):
    sleeper = await listening(pg)
    other = PostgresStore(url)
    await other.open()
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await other.aenqueue_in(connection, a_batch())
    await other.close()
    assert await sleeper
    assert await claim(pg) is not None
    await connection.close()


async def test_only_those_who_asked_are_woken(pg: PostgresStore, url: str):
    mine = await listening(pg, "mine")
    other = PostgresStore(url)
    await other.open()
    theirs = await listening(other, "theirs")
    await put(pg, lane=Lane("theirs"))
    assert await theirs
    assert not mine.done()
    mine.cancel()
    await other.close()


async def test_what_goes_back_wakes_the_sleeper(pg: PostgresStore, url: str):
    await put(pg)
    lease = await take(pg)
    other = PostgresStore(url)
    await other.open()
    sleeper = await listening(other)
    await pg.settle(lease.token, [(0, Again(0, 0))])
    assert await sleeper
    await other.close()


async def test_resume_wakes_the_sleeper(pg: PostgresStore, url: str):
    await pg.pause("default")
    await put(pg)
    other = PostgresStore(url)
    await other.open()
    sleeper = await listening(other)
    await pg.resume("default")
    assert await sleeper
    await other.close()


async def test_a_hint_between_claim_and_wait_is_not_lost(pg: PostgresStore):
    sleeper = await listening(pg)
    await put(pg)
    assert await sleeper
    await take(pg)
    assert await claim(pg) is None
    await put(pg)
    assert await pg.wait(["default"], LONG)


async def test_a_lost_ear_grows_again(pg: PostgresStore, sql: Any):
    sleeper = await listening(pg)
    await sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    # When it listens again it wakes the waiters, because it may have missed a hint.
    assert await sleeper
    assert await claim(pg) is None
    sleeper = asyncio.create_task(pg.wait(["default"], LONG))
    await sql.execute("select headrace.enqueue('t')")
    await sql.execute("select pg_notify('headrace', 'default')")
    assert await sleeper


async def test_many_enqueues_are_few_notifications(pg: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch):
    # So long that several fall into one gap, however slow this machine's disk is.
    monkeypatch.setattr(wakeup, "_GAP", 0.2)
    monkeypatch.setattr(wakeup, "_LONGEST_GAP", 0.2)
    heard: list[str] = []
    connection = await asyncpg.connect(url)
    await connection.add_listener("headrace", lambda *args: heard.append(args[3]))
    for _ in range(200):
        await pg.enqueue(a_batch())
    done = asyncio.Event()
    await connection.add_listener("over", lambda *_: done.set())
    await pg.close()
    await connection.execute("select pg_notify('over', '')")
    await done.wait()
    assert 1 <= len(heard) < 200
    await connection.close()


async def test_closing_ends_a_connection_that_is_being_made(pg: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    began, go = asyncio.Event(), asyncio.Event()
    made: list[Any] = []
    real = wakeup.connect

    async def slow(*args: Any, **options: Any) -> Any:
        began.set()
        await go.wait()
        made.append(await real(*args, **options))
        return made[-1]

    monkeypatch.setattr(wakeup, "connect", slow)
    await pg.enqueue(a_batch())
    await began.wait()
    closing = asyncio.create_task(pg.close())
    await asyncio.sleep(0)
    go.set()
    await closing
    assert [connection.is_closed() for connection in made] == [True]


@pytest.mark.parametrize("gap", [0.001, 0.01])
def test_a_trickle_of_enqueues_keeps_the_gap_between_notifications_short(gap: float):
    shortest = wakeup.next_gap(gap, 0, gap)
    assert shortest == 0.001
    # Five hundred jobs per second are five hints in a long gap.
    assert wakeup.next_gap(gap, round(500 * gap), gap) == shortest


def test_the_gap_grows_while_many_enqueues_go_on():
    gaps = [wakeup.next_gap(1.0, 0, 1.0)]
    for _ in range(20):
        gaps.append(wakeup.next_gap(gaps[-1], 50, gaps[-1]))
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[-1] == gaps[-2] <= 0.01


async def test_without_a_hint_the_time_runs_out(pg: PostgresStore):
    assert await pg.wait(["default"], 0.01) is False


@pytest.mark.parametrize("due", [None, timedelta(0), datetime(2026, 1, 1, tzinfo=UTC)])
def test_workers_hear_of_a_job_that_comes_back_ready(due: Due):
    """`promote` does not find such a job, so no other hint would lead to it."""
    assert ALL in hints_of([(0, Again(1, 0, due))])
    assert ALL not in hints_of([(0, Again(1, 0, timedelta(seconds=1)))])
