"""Callers of `find` on a store that ends pages early: what is asked for is shown, once, however rare it is."""

from __future__ import annotations

import pytest

from conformance.kit import CANCELLED, DEAD, new, put, put_jobs, run_one, settle_all, take
from headrace.cli.board import Board
from headrace.model.job import JobId
from headrace.model.records import Filter, Page
from headrace.operate.dead.letters import DeadLetters
from headrace.operate.search import Search
from headrace.operate.shown import unknown
from headrace.store import pages
from headrace.store.memory import MemoryStore

USUAL = 100


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def behind_many(store: MemoryStore) -> JobId:
    """A dead job, and so many newer ones that were cancelled that a call of `find` does not see it."""
    [id] = await put(store, task="rare")
    await run_one(store, DEAD)
    await put(store, USUAL)
    await settle_all(store, await take(store, USUAL), CANCELLED)
    page = await store.find(Filter(task="rare"))
    assert page.jobs == []
    assert page.next is not None
    return id


async def test_a_filled_page_is_full_or_the_last(store: MemoryStore):
    id = await behind_many(store)
    page = await Search(store, unknown).fill(Filter(task="rare"), limit=5)
    assert ([job.id for job in page.jobs], page.next) == ([id], None)
    first = await Search(store, unknown).fill(Filter(), limit=5)
    assert len(first.jobs) == 5
    assert first.next == first.jobs[-1].id


async def test_dead_letters_are_listed_behind_any_number_of_others(store: MemoryStore):
    id = await behind_many(store)
    page = await DeadLetters(store).jobs(limit=5)
    assert ([job.id for job in page.jobs], page.next) == ([id], None)
    assert [group.count for group in await DeadLetters(store).groups()] == [1]


async def test_a_board_looks_further_than_a_short_page_but_not_for_ever(store: MemoryStore):
    id = await behind_many(store)
    board = Board()
    await board.look(store, jobs=3)
    assert [job.id for job in board.dead] == [id]
    await put(store, 10 * USUAL)
    await board.look(store, jobs=3)
    assert board.dead == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
async def test_merged_pages_leave_nothing_out(store: MemoryStore, limit: int):
    """One part ends its pages early, the others do not: a page ends where the first part stopped."""
    queues = ("a", "b", "c")
    made = await put_jobs(store, *[new("usual" if n % 9 else "rare", queue=queues[n % 5 % 3]) for n in range(300)])
    wanted = [id for n, id in enumerate(made) if n % 9 == 0]
    seen: list[JobId] = []
    before: JobId | None = None
    while True:
        parts = [await store.find(Filter(task="rare", queue=queue), before=before, limit=limit) for queue in queues]
        page = pages.merge(parts, limit)
        assert len(page.jobs) <= limit
        seen += [job.id for job in page.jobs]
        if page.next is None:
            break
        before = page.next
    assert seen == wanted[::-1]


def test_nothing_merged_is_the_end():
    assert pages.merge([], 5) == Page([], None)
