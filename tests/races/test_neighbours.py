"""Neighbours: jobs of one enqueue call that are taken out one by one, all at once. None may be passed over."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from conformance.kit import batch, find_all, new, put, settle_all, take
from headrace.model.job import JobId, JobState, UniqueLock, job_id
from headrace.model.records import CancelAnswer
from headrace.store.contract import Store
from races.kit import side_by_side, together

CALLS, SIZE = 12, 8
LATER = timedelta(hours=1)
LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})


async def fill(store: Store, due: timedelta | None = None) -> list[JobId]:
    return [id for _ in range(CALLS) for id in await put(store, SIZE, due=due)]


@pytest.mark.parametrize("due", [None, LATER])
async def test_neighbours_deleted_at_once_are_all_gone(store_url: str, due: timedelta | None):
    async with side_by_side(store_url, 4) as stores:
        made = await fill(stores[0], due)
        gone = await together(*[stores[n % 4].delete([id]) for n, id in enumerate(made)])
        assert [set(answer) for answer in gone] == [{id} for id in made]
        assert await find_all(stores[0]) == []


async def test_neighbours_retried_at_once_are_all_ready(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        made = await fill(stores[0], LATER)
        moved = await together(*[stores[n % 4].retry([id]) for n, id in enumerate(made)])
        assert [set(answer) for answer in moved] == [{id} for id in made]
        assert {job.state for job in await find_all(stores[0])} == {JobState.READY}


async def test_neighbours_that_ended_together_are_retried_and_deleted_at_once(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        made = await fill(stores[0])
        await settle_all(stores[0], await take(stores[0], CALLS * SIZE))
        taken = await together(
            *[(stores[n % 4].retry if n % 3 else stores[n % 4].delete)([id]) for n, id in enumerate(made)]
        )
        assert [set(answer) for answer in taken] == [{id} for id in made]
        found = {job.id: job.state for job in await find_all(stores[0])}
        assert found == {id: JobState.READY for n, id in enumerate(made) if n % 3}


async def test_neighbours_cancelled_at_once_are_all_cancelled(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        made = await fill(stores[0])
        answers = await together(*[stores[n % 4].cancel([id]) for n, id in enumerate(made)])
        assert answers == [{id: CancelAnswer.CANCELLED} for id in made]


@pytest.mark.parametrize("due", [None, LATER])
async def test_neighbours_replaced_at_once_leave_one_job_each(store_url: str, due: timedelta | None):
    async with side_by_side(store_url, 4) as stores:
        names = [[f"{call}-{n}" for n in range(SIZE)] for call in range(CALLS)]
        for some in names:
            await stores[0].enqueue(batch(*[new(due=due, unique=UniqueLock(name, LIVE)) for name in some]))
        fresh = [
            batch(new(payload=name.encode(), unique=UniqueLock(name, LIVE, replace=True)))
            for some in names
            for name in some
        ]
        await together(*[stores[n % 4].enqueue(one) for n, one in enumerate(fresh)])
        found = await find_all(stores[0])
        assert Counter(job.state for job in found) == {
            JobState.READY: CALLS * SIZE,
            JobState.CANCELLED: CALLS * SIZE,
        }
        assert {job.id for job in found if job.state is JobState.READY} == {job_id(one.id, 0) for one in fresh}
