"""Finding step by step: pages are complete whatever the steps, and no call waits for a search to end."""

from __future__ import annotations

import asyncio

import pytest

from conformance.kit import batch, claim, new, put, put_jobs
from headrace.model.job import JobId, JobState
from headrace.model.outcome import DONE, Finish, Settlement
from headrace.model.records import Filter
from headrace.store.sqlite.store import SqliteStore
from headrace.store.sqlite.verbs import find


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step looks at one job."""
    monkeypatch.setattr(find, "_LOOKS", 1)
    monkeypatch.setattr(find, "_SHORT", 0.0)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
async def test_pages_are_whole_over_many_steps(sqlite_store: SqliteStore, limit: int):
    wanted: list[JobId] = []
    for number in range(12):
        made = await put_jobs(sqlite_store, *(new(task="rare" if place == number else "usual") for place in range(5)))
        wanted = made[number : number + 1] + wanted
    found: list[JobId] = []
    before: JobId | None = None
    while True:
        page = await sqlite_store.find(Filter(task="rare"), before=before, limit=limit)
        found += [job.id for job in page.jobs]
        if (before := page.next) is None:
            break
        assert len(page.jobs) == limit
    assert found == wanted
    usual = await sqlite_store.find(Filter(task="usual"), limit=100)
    assert len(usual.jobs) == 12 * 5 - len(wanted)


@pytest.mark.usefixtures("one_by_one")
async def test_others_read_while_it_searches(sqlite_store: SqliteStore):
    [old] = await put(sqlite_store, task="rare")
    for _ in range(100):
        await sqlite_store.enqueue(batch(new()))
    search = asyncio.ensure_future(sqlite_store.find(Filter(task="rare")))
    await asyncio.sleep(0)  # its first step is on its way
    for _ in range(10):
        await sqlite_store.get([old])
    assert not search.done()
    assert [job.id for job in (await search).jobs] == [old]


async def test_steps_grow_while_they_are_short(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(find, "_LOOKS", 1)
    monkeypatch.setattr(find, "_SHORT", 60.0)
    steps = 0
    step = find.Search.step

    def counted(search: find.Search, tx: find.Tx) -> find.Page | None:
        nonlocal steps
        steps += 1
        return step(search, tx)

    monkeypatch.setattr(find.Search, "step", counted)
    for _ in range(100):
        await put(sqlite_store)
    assert (await sqlite_store.find(Filter(task="rare"))).jobs == []
    assert steps == 7  # 1 + 2 + 4 + … + 32 jobs, and the rest


@pytest.mark.parametrize("most", [1, 7, 64])
@pytest.mark.parametrize("states", [frozenset[JobState](), frozenset({JobState.READY})])
async def test_a_call_looks_at_a_bounded_number_of_jobs(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, most: int, states: frozenset[JobState]
):
    monkeypatch.setattr(find, "_LOOKS", 4)
    monkeypatch.setattr(find, "_MOST", most)
    wanted: list[JobId] = []
    for number in range(30):
        made = await put_jobs(sqlite_store, *(new(task="rare" if number % 10 == 3 else "usual") for _ in range(9)))
        wanted = ([] if number % 10 != 3 else made[::-1]) + wanted
    found: list[JobId] = []
    before: JobId | None = None
    calls = 0
    while True:
        page = await sqlite_store.find(Filter(task="rare", states=states), before=before, limit=5)
        found += [job.id for job in page.jobs]
        calls += 1
        if (before := page.next) is None:
            break
    assert found == wanted
    assert calls >= 270 // max(most, 4)


async def end_all(store: SqliteStore, dies: set[JobId]) -> None:
    """Every ready job is done, and these are dead."""
    while (lease := await claim(store, limit=1000)) is not None:
        ends: list[tuple[int, Settlement]] = [
            (place, Finish(JobState.DEAD, note="max_attempts") if job.id in dies else DONE)
            for place, job in enumerate(lease.jobs)
        ]
        assert not await store.settle(lease.token, ends)


@pytest.mark.parametrize("looks", [1, 3, 64, 4096])
@pytest.mark.parametrize("limit", [1, 4, 50])
@pytest.mark.parametrize("close", [0, 1000])
async def test_dead_jobs_among_many_that_are_done(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, looks: int, limit: int, close: int
):
    monkeypatch.setattr(find, "_FEW", 1)
    monkeypatch.setattr(find, "_CLOSE", close)
    monkeypatch.setattr(find, "_LOOKS", looks)
    monkeypatch.setattr(find, "_MOST_RARE", 40 * looks)
    ids: list[JobId] = []
    for size in (1, 7, 300, 1, 1, 90, 5):
        ids += await put_jobs(sqlite_store, *[new()] * size)
    dies = {*ids[::37], ids[1], ids[-1]}
    await end_all(sqlite_store, dies)
    [waiting] = await put(sqlite_store)
    await sqlite_store.cancel([waiting])
    found: list[JobId] = []
    before: JobId | None = None
    while True:
        page = await sqlite_store.find(Filter(states=frozenset({JobState.DEAD})), before=before, limit=limit)
        found += [job.id for job in page.jobs]
        if (before := page.next) is None:
            break
    assert found == sorted(dies, key=lambda job: job.int, reverse=True)
    both = await sqlite_store.find(Filter(states=frozenset({JobState.DEAD, JobState.CANCELLED})), limit=1)
    assert [job.id for job in both.jobs] == [waiting]


async def test_a_page_of_dead_jobs_is_found_in_one_call_among_very_many(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(find, "_FEW", 1)
    ids = await put_jobs(sqlite_store, *[new()] * 30_000)
    await end_all(sqlite_store, {ids[0], ids[1]})
    page = await sqlite_store.find(Filter(states=frozenset({JobState.DEAD})), limit=50)
    assert [job.id for job in page.jobs] == [ids[1], ids[0]]
    assert page.next is None


@pytest.mark.parametrize("where", [Filter(task="rare"), Filter(states=frozenset({JobState.CANCELLED}))])
async def test_no_statement_of_a_search_reads_a_long_batch_whole(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, where: Filter
):
    monkeypatch.setattr(find, "_FEW", 0)
    await sqlite_store.enqueue(batch(*[new(task="usual")] * 20_000))
    steps: list[int] = []
    reader = sqlite_store._reader
    assert reader is not None

    def count(tx: find.Tx) -> None:
        # Called after every 1,000 instructions of SQLite's machine; a job takes some tens.
        tx.cur.connection.set_progress_handler(lambda: steps.append(1) and None, 1000)

    await reader.call(count)
    search = find.Search(where, None, 50)
    most = 0
    while True:
        steps.clear()
        search._looks = min(search._looks, 500)
        page = await reader.call(search.step)
        most = max(most, len(steps))
        if page is not None:
            break
    assert page.jobs == []
    # 500 jobs, not 20,000
    assert most < 200
