"""ended: finished jobs in the order of their ends."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import CANCELLED, DEAD, RELEASE, find_all, new, put, put_jobs, run_one, settle_all, states, take
from headrace.model.job import JobState
from headrace.model.records import Ending
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)


async def test_nothing_ended_yet(store: Store, clock: FakeClock):
    await put(store, 3)
    await take(store, 2)
    assert await store.ended(clock.now() - S) == []


async def test_every_kind_of_end_in_order(store: Store, clock: FakeClock):
    start = clock.now()
    jobs = await put_jobs(store, *[new(f"t{n}", tenant="x" if n % 2 else "", queue="q") for n in range(5)])
    expected: list[Ending] = []
    for n, (end, state) in enumerate(
        [(DEAD, JobState.DEAD), (RELEASE, None), (CANCELLED, JobState.CANCELLED), (None, JobState.DONE)]
    ):
        clock.advance(S)
        lease = await take(store, 1, "q", tenant="x" if n in {0, 2} else "")
        if end is not None:
            await settle_all(store, lease, end)
        else:
            await settle_all(store, lease)
        job = lease.jobs[0]
        if state is not None:
            expected.append(Ending(job.id, state, clock.now(), "q", job.task, job.tenant))
    clock.advance(S)
    left = [id for id in jobs if id not in {ending.id for ending in expected}]
    await store.cancel([left[0]])
    found = await store.ended(start)
    assert found[:-1] == expected
    assert (found[-1].id, found[-1].state, found[-1].at) == (left[0], JobState.CANCELLED, clock.now())
    assert [ending.id for ending in await store.ended(expected[1].at)] == [ending.id for ending in found[1:]]
    assert await store.ended(clock.now() + timedelta(microseconds=1)) == []


async def test_many_at_once_by_id(store: Store, clock: FakeClock):
    wanted = await put(store, 30)
    await settle_all(store, await take(store))
    assert [ending.id for ending in await store.ended(clock.now())] == sorted(wanted)
    assert [ending.id for ending in await store.ended(clock.now(), 7)] == sorted(wanted)[:7]


async def test_jobs_taken_out_of_a_lease_that_went_well(store: Store, clock: FakeClock):
    """One lease of jobs that ended alike: each of them is still a job of its own."""
    start = clock.now()
    made = sorted(await put(store, 100))
    await settle_all(store, await take(store))
    before = await store.get(made)
    assert await store.retry([made[0], made[40], made[41]]) == frozenset({made[0], made[40], made[41]})
    assert await store.delete([made[63], made[64], made[99]]) == frozenset({made[63], made[64], made[99]})
    back, gone = {0, 40, 41}, {63, 64, 99}
    kept = [id for n, id in enumerate(made) if n not in back | gone]
    assert [ending.id for ending in await store.ended(start)] == kept
    assert await store.get(kept) == [job for job in before if job is not None and job.id in kept]
    assert await states(store, made) == [
        JobState.READY if n in back else None if n in gone else JobState.DONE for n in range(100)
    ]
    clock.advance(S)
    await settle_all(store, await take(store))
    again = [made[0], made[40], made[41]]
    assert [ending.id for ending in await store.ended(start)] == kept + again
    assert [ending.id for ending in await store.ended(start, 95)] == (kept + again)[:95]
    assert [job and job.attempt for job in await store.get(again)] == [2, 2, 2]
    assert {job.id for job in await find_all(store)} == {*kept, *again}


async def test_a_limit_takes_the_earliest(store: Store, clock: FakeClock):
    start = clock.now()
    done: list[object] = []
    for end in (DEAD, CANCELLED, None, DEAD):
        clock.advance(S)
        await put(store)
        done.append(await run_one(store, end) if end else await run_one(store))
    assert [ending.id for ending in await store.ended(start, 3)] == done[:3]


async def test_who_was_retried_has_not_ended(store: Store, clock: FakeClock):
    start = clock.now()
    [id] = await put(store)
    await run_one(store, DEAD)
    await store.retry([id])
    assert await store.ended(start) == []
    await run_one(store)
    assert [(ending.id, ending.state) for ending in await store.ended(start)] == [(id, JobState.DONE)]
    await store.delete([id])
    assert await store.ended(start) == []
