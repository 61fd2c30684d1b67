"""Many claims at once: every job is claimed exactly once, whatever each claim asks for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from conformance.kit import claim, counts, find_all, ids, put, queue_stats, settle_all
from headrace.model.job import JobId, JobState
from headrace.model.lease import new_worker_id
from headrace.model.outcome import DONE
from headrace.store.contract import Store
from races.kit import in_threads, side_by_side, together


async def drain(store: Store, limit: int, *, settle: bool = True) -> list[JobId]:
    """Claim and settle until there is nothing left."""
    worker, taken = new_worker_id(), list[JobId]()
    while lease := await claim(store, limit, "a", "b", worker=worker):
        taken += ids(lease)
        if settle:
            await settle_all(store, lease, DONE)
    return taken


async def fill(store: Store) -> list[JobId]:
    made: list[JobId] = []
    for n in range(60):
        made += await put(store, n % 12 + 1, queue="ab"[n % 2], priority=n % 3, tenant=f"t{n % 4}")
    return made


def fill_here(url: str) -> list[JobId]:
    return in_threads(url, fill)[0]


@pytest.mark.parametrize("limits", [(1, 1, 1, 1), (1, 3, 10, 100), (50, 50, 50, 50)])
def test_threads_claim_every_job_exactly_once(store_url: str, limits: tuple[int, ...]):
    made = fill_here(store_url)
    # Nothing claimed by one may be missed: a claimer that found nothing has seen others at work, so one looks again.
    taken = in_threads(store_url, *[lambda store, limit=limit: drain(store, limit) for limit in limits])
    [rest] = in_threads(store_url, lambda store: drain(store, 100))
    everything = [id for part in [*taken, rest] for id in part]
    assert Counter(everything) == Counter(made)


async def test_claims_without_settling_never_overlap(store_url: str):
    async with side_by_side(store_url, 6) as stores:
        made = await fill(stores[0])
        parts = await together(*[drain(store, 1 + 3 * n, settle=False) for n, store in enumerate(stores)])
        rest = await drain(stores[0], 100, settle=False)
        assert Counter(id for part in [*parts, rest] for id in part) == Counter(made)
        figures = [await queue_stats(stores[0], queue) for queue in ("a", "b")]
        assert sum(q.running for q in figures) == len(made)
        assert sum(q.ready for q in figures) == 0


async def test_claims_while_jobs_come(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        over = asyncio.Event()
        made: list[JobId] = []

        async def produce(store: Store) -> list[JobId]:
            mine = [id for n in range(40) for id in await put(store, n % 5 + 1, queue="ab"[n % 2], tenant=f"t{n % 3}")]
            made.extend(mine)
            return mine

        async def consume(store: Store) -> list[JobId]:
            taken: list[JobId] = []
            while not over.is_set():
                taken += await drain(store, 7)
                await store.wait(["a", "b"], 0.01)
            return taken + await drain(store, 7)

        consumers = [asyncio.create_task(consume(store)) for store in stores[2:]]
        await together(produce(stores[0]), produce(stores[1]))
        over.set()
        taken = await together(*consumers)
        assert Counter(id for part in taken for id in part) == Counter(made)
        assert {job.state for job in await find_all(stores[0])} == {JobState.DONE}


async def test_one_store_object_serves_many_coroutines(real_store: Store):
    made = await fill(real_store)
    parts = await together(*[drain(real_store, 5) for _ in range(8)])
    rest = await drain(real_store, 5)
    assert Counter(id for part in [*parts, rest] for id in part) == Counter(made)
    assert await counts(real_store, "a") == {}


async def test_every_lease_is_in_the_order_of_its_lane(store_url: str):
    """Claimers that share a lane may pass each other; inside one lease the order holds all the same."""
    async with side_by_side(store_url, 3) as stores:
        made = [id for n in range(30) for id in await put(stores[0], n % 4 + 1, queue="a")]

        async def leases(store: Store) -> list[list[JobId]]:
            found: list[list[JobId]] = []
            while lease := await claim(store, 5, "a"):
                found.append(ids(lease))
            return found

        parts = [lease for part in await together(*[leases(store) for store in stores]) for lease in part]
        parts += await leases(stores[0])
        assert parts == [sorted(lease) for lease in parts]
        assert sorted(id for lease in parts for id in lease) == made
