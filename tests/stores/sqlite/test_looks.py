"""Looks are made of short steps: none does more work because of the history, the backlog, the tenants or the queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from conformance.kit import TTL, WORKER, batch, claim, new, put, put_jobs, rule, settle_all, take
from headrace.model.job import JobId
from headrace.model.lease import Ask, new_token
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.store import SqliteStore
from headrace.store.sqlite.verbs import ahead, ended, lanes, stats

ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)


async def longest_step(store: SqliteStore, look: Callable[[], Awaitable[Any]]) -> int:
    """How much work the longest step of a call takes, in hundreds of instructions of SQLite's machine."""
    reader = store._reader
    assert reader is not None
    work: list[int] = []

    def watch(tx: Tx) -> None:
        tx.cur.connection.set_progress_handler(lambda: work.append(1) and None, 100)

    await reader.call(watch)
    call, most = reader.call, 0

    async def counted(step: Callable[[Tx], Any]) -> Any:
        nonlocal most
        work.clear()
        answer = await call(step)
        most = max(most, len(work))
        return answer

    reader.call = counted  # pyright: ignore[reportAttributeAccessIssue]
    await look()
    reader.call = call
    return most


async def test_no_step_grows_with_the_tenants(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats, "_HEADS", 20)
    monkeypatch.setattr(stats, "_FEW", 0)
    monkeypatch.setattr(lanes, "_RANGES", 1000)
    made: list[int] = []
    for tenants in (100, 1400):
        await put_jobs(sqlite_store, *[new(tenant=f"{tenants}-{n}") for n in range(tenants)])
        made.append(await longest_step(sqlite_store, sqlite_store.stats))
        made.append(await longest_step(sqlite_store, lambda: sqlite_store.lanes(["default"], 10_000)))
    assert made[2] <= made[0] + 5
    assert made[3] <= made[1] + 5


async def test_no_step_grows_with_the_pieces_of_lanes(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lanes, "_RANGES", 200)
    made: list[int] = []
    for calls in (10, 50):
        for _ in range(calls):
            await put_jobs(sqlite_store, *[new(tenant=f"{n}") for n in range(20)])
        made.append(await longest_step(sqlite_store, lambda: sqlite_store.lanes(["default"])))
        # 200 ranges and with the last lane as many as it has
    assert made[1] <= 4 * made[0]
    assert [view.jobs for view in await sqlite_store.lanes(["default"])] == [60] * 20


async def test_no_step_grows_with_the_queues(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stats, "_QUEUES", 20)
    monkeypatch.setattr(stats, "_HEADS", 20)
    made: list[int] = []
    for queues in (60, 600):
        await put_jobs(sqlite_store, *[new(queue=f"{queues}-{n}") for n in range(queues)])
        made.append(await longest_step(sqlite_store, sqlite_store.stats))
    assert made[1] <= made[0] + 5
    await sqlite_store.pause("paused")
    await sqlite_store.pause("5-paused")
    names = [each.queue for each in (await sqlite_store.stats()).queues]
    assert len(names) == 662
    assert names == sorted(names)


async def test_a_queue_with_more_lanes_than_are_looked_at_says_so(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stats, "_FEW", 0)
    monkeypatch.setattr(stats, "_HEADS", 3)
    for priority, tenant in ((0, "a"), (5, "b"), (0, ""), (-3, "c"), (5, "a")):
        await put(sqlite_store, 2, priority=priority, tenant=tenant)
    for most, more in ((4, True), (5, False), (6, False)):
        monkeypatch.setattr(stats, "_MOST_LANES", most)
        [figures] = (await sqlite_store.stats()).queues
        assert figures.oldest_at_least is more
        assert figures.oldest_ready is not None
        assert figures.oldest_ready < timedelta(hours=1)


# ── history ─────────────────────────────────────────────────────────────────


async def end_all(store: SqliteStore, limit: int = 1000) -> None:
    while lease := await claim(store, limit):
        await settle_all(store, lease)


async def test_one_ending_of_a_large_range_is_read_alone(sqlite_store: SqliteStore):
    made: list[int] = []
    for jobs in (10, 1000):
        begun = await sqlite_store.now()
        await put(sqlite_store, jobs)
        await settle_all(sqlite_store, await take(sqlite_store, jobs))
        made.append(await longest_step(sqlite_store, partial(sqlite_store.ended, begun, 1)))
    assert made[1] <= made[0] + 2


@pytest.mark.parametrize(("ranges", "jobs"), [(1, 1), (2, 3), (3, 7), (500, 500)])
async def test_endings_are_whole_and_in_order_over_many_steps(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, ranges: int, jobs: int
):
    monkeypatch.setattr(ended, "_RANGES", ranges)
    monkeypatch.setattr(ended, "_JOBS", jobs)
    made: list[JobId] = []
    for number in range(8):
        made += await put_jobs(sqlite_store, *[new(tenant=f"t{n % 3}") for n in range(number + 4)])
    lease = await take(sqlite_store, 40)
    await sqlite_store.settle(lease.token, [])
    await settle_all(sqlite_store, lease)
    waiting = [id for id in made if id not in {job.id for job in lease.jobs}]
    await sqlite_store.cancel(waiting[:9])
    await end_all(sqlite_store, 3)
    found = await sqlite_store.ended(ALWAYS)
    assert sorted(each.id for each in found) == sorted(made)
    assert found == sorted(found, key=lambda each: (each.at, each.id))
    for limit in (0, 1, 13, 45, len(made)):
        assert await sqlite_store.ended(ALWAYS, limit) == found[:limit]


async def test_no_step_of_endings_grows_with_their_number(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ended, "_RANGES", 10)
    monkeypatch.setattr(ended, "_JOBS", 50)
    made: list[int] = []
    for calls in (5, 50):
        for _ in range(calls):
            await sqlite_store.enqueue(batch(*[new()] * 20))
            await end_all(sqlite_store)
        made.append(await longest_step(sqlite_store, lambda: sqlite_store.ended(ALWAYS, 10_000)))
    assert made[1] <= made[0] + 5


# ── ahead ───────────────────────────────────────────────────────────────────


async def test_holders_are_sought_in_a_bounded_number_of_leases(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ahead, "_LEASES", 5)
    await rule(sqlite_store, "shop", concurrency=100)
    made: list[int] = []
    for leases in (10, 200):
        for _ in range(leases):
            await put(sqlite_store, limits=("other:1",))
            await take(sqlite_store, 1)
        [holder] = await put(sqlite_store, limits=("shop:1",))
        await sqlite_store.claim(Ask(WORKER, ("default",), 1, TTL, new_token()))
        [waits] = await put(sqlite_store, limits=("shop:1",))
        await rule(sqlite_store, "shop", concurrency=1)
        made.append(await longest_step(sqlite_store, partial(sqlite_store.ahead, waits)))
        monkeypatch.setattr(ahead, "_LEASES", 1000)
        found = await sqlite_store.ahead(waits)
        assert found is not None
        assert holder in found.blocked[0].by
        await rule(sqlite_store, "shop", concurrency=100)
        await sqlite_store.claim(Ask(WORKER, ("default",), 1, TTL, new_token()))
        monkeypatch.setattr(ahead, "_LEASES", 5)
    assert made[1] <= made[0] + 5
