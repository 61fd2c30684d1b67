"""Bands: parts of what waits, by priority, that a claim looks at before the rest."""

from __future__ import annotations

from collections import Counter

from conformance.kit import RELEASE, claim, ids, put, settle_all, take
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import Band, Lease
from headrace.model.outcome import Again
from headrace.store.contract import Store

HIGH = (1, HIGHEST_PRIORITY)
LOW = (LOWEST_PRIORITY, 0)


def priorities(lease: Lease | None) -> Counter[int]:
    return Counter(job.priority for job in lease.jobs) if lease else Counter()


async def both(store: Store, count: int = 50) -> None:
    await put(store, count, priority=5)
    await put(store, count, priority=-5)


async def test_shares_come_first(store: Store):
    await both(store)
    assert priorities(await claim(store, 10, bands=(Band(*HIGH, 8), Band(*LOW, 2)))) == {5: 8, -5: 2}


async def test_the_rest_is_strict(store: Store):
    await both(store)
    assert priorities(await claim(store, 10, bands=(Band(*LOW, 3),))) == {5: 7, -5: 3}


async def test_what_a_band_has_not_goes_to_the_others(store: Store):
    await put(store, 5, priority=-5)
    assert priorities(await claim(store, 10, bands=(Band(*HIGH, 8), Band(*LOW, 2)))) == {-5: 5}
    await put(store, 30, priority=5)
    assert priorities(await claim(store, 10, bands=(Band(*HIGH, 8), Band(*LOW, 2)))) == {5: 10}


async def test_bands_order_levels_as_they_like(store: Store):
    for priority in (1, 2, 3):
        await put(store, 2, priority=priority)
    lease = await take(store, 5, bands=(Band(2, 2, 5), Band(1, 1, 5), Band(3, 3, 5)))
    assert [job.priority for job in lease.jobs] == [2, 2, 1, 1, 3]


async def test_inside_a_band_it_is_strict(store: Store):
    for priority in (-3, -1, -2):
        await put(store, 1, priority=priority)
    await put(store, 9, priority=1)
    lease = await take(store, 4, bands=(Band(*LOW, 2),))
    assert [job.priority for job in lease.jobs] == [-1, -2, 1, 1]


async def test_nothing_but_the_bands(store: Store):
    await both(store, 5)
    assert priorities(await claim(store, 100, bands=(Band(*HIGH, 3),), only_bands=True)) == {5: 3}
    assert priorities(await claim(store, 100, bands=(Band(*HIGH, 100),), only_bands=True)) == {5: 2}
    assert await claim(store, 100, bands=(Band(*HIGH, 100),), only_bands=True) is None
    assert await claim(store, 100, only_bands=True) is None


async def test_bands_of_one_queue(store: Store):
    for queue in ("a", "b"):
        for priority in (5, -5):
            await put(store, 10, queue=queue, priority=priority)
    lease = await take(store, 6, "a", "b", bands=(Band(*LOW, 4, ("b",)),))
    assert Counter((job.queue, job.priority) for job in lease.jobs)["b", -5] == 4
    assert priorities(lease) == {-5: 4, 5: 2}
    assert await claim(store, 6, "a", bands=(Band(*LOW, 6, ("b",)),), only_bands=True) is None


async def test_one_job_at_a_time(store: Store):
    await both(store)
    assert priorities(await claim(store, 1, bands=(Band(*LOW, 1),))) == {-5: 1}
    assert priorities(await claim(store, 1, bands=(Band(*HIGH, 1),))) == {5: 1}


async def test_positions_run_through(store: Store):
    await both(store, 3)
    lease = await take(store, 6, bands=(Band(*LOW, 2), Band(*HIGH, 1)))
    assert [job.priority for job in lease.jobs] == [-5, -5, 5, 5, 5, -5]
    await store.settle(lease.token, [(1, RELEASE)])
    assert ids(await take(store)) == [lease.jobs[1].id]
    await store.settle(lease.token, [(at, RELEASE) for at in (0, 2, 3, 4, 5)])
    assert [job.priority for job in (await take(store)).jobs] == [5, 5, 5, -5, -5]


async def test_a_suspect_is_alone_over_all_bands(store: Store):
    await put(store, 1, priority=5)
    await settle_all(store, await take(store), Again(0, 1, suspect=True))
    await put(store, 3, priority=-5)
    lease = await take(store, 10, bands=(Band(*LOW, 2), Band(*HIGH, 2)))
    assert priorities(lease) == {-5: 2}
    lease = await take(store, 10, bands=(Band(*HIGH, 2), Band(*LOW, 2)))
    assert lease.suspect
    assert priorities(lease) == {5: 1}
