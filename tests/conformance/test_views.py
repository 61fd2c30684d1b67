"""lanes: what waits, lane by lane; retry of scheduled jobs as if they were due."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import DEAD, failure, look, new, put, put_jobs, run_one, settle_all, state, take
from headrace.model.job import JobState
from headrace.model.lane import Lane, LaneView
from headrace.model.outcome import Again
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)


async def test_no_lanes(store: Store):
    await put(store, due=S)
    assert await store.lanes(["default", "none"]) == []
    assert await store.lanes([]) == []


async def test_every_lane_with_its_jobs_and_age(store: Store, clock: FakeClock):
    start = clock.now()
    await put(store, 3, tenant="a")
    clock.advance(S)
    await put(store, 2, tenant="a")
    await put(store, 4, tenant="b", priority=2, limits=("shop:1",))
    await put(store, 1, queue="other")
    await put(store, 1, queue="unasked")
    views = sorted(await store.lanes(["default", "other"]), key=lambda view: (view.queue, view.tenant))
    limited = Lane("default", 2, "b", ("shop:1",)).id
    assert views == [
        LaneView(queue="default", priority=0, tenant="a", id=0, jobs=5, oldest=start),
        LaneView(queue="default", priority=2, tenant="b", id=limited, jobs=4, oldest=start + S),
        LaneView(queue="other", priority=0, tenant="", id=0, jobs=1, oldest=start + S),
    ]
    await take(store, 4, tenant="a")
    [view] = [view for view in await store.lanes(["default"]) if view.tenant == "a"]
    assert (view.jobs, view.oldest) == (1, start + S)
    await take(store, tenant="a")
    assert [view.tenant for view in await store.lanes(["default"])] == ["b"]


async def test_the_first_job_of_a_lane_may_be_one_that_was_put_off_behind_a_cancelled_one(
    store: Store, clock: FakeClock
):
    start = clock.now()
    [cancelled] = await put(store)
    await put(store, due=S)
    clock.advance(10 * S)
    await put(store)
    await store.cancel([cancelled])
    await store.promote()
    [view] = await store.lanes(["default"])
    assert (view.jobs, view.oldest) == (2, start)


async def test_jobs_that_came_back_count(store: Store, clock: FakeClock):
    start = clock.now()
    await put(store, 2)
    clock.advance(S)
    await put(store, 2)
    await settle_all(store, await take(store, 1), Again(1, 0))
    [view] = await store.lanes(["default"])
    assert (view.jobs, view.oldest) == (4, start)


async def test_a_limited_look_sees_others_each_time(store: Store):
    await put_jobs(store, *[new(tenant=f"t{n:02}") for n in range(40)])
    seen: set[str] = set()
    for _ in range(200):
        views = await store.lanes(["default"], 8)
        assert 1 <= len({view.tenant for view in views}) == len(views) <= 8
        seen |= {view.tenant for view in views}
    assert len(seen) == 40


async def test_a_look_is_limited_per_queue(store: Store):
    for queue in ("a", "b"):
        await put_jobs(store, *[new(tenant=f"t{n}", queue=queue) for n in range(4)])
    assert sorted(view.queue for view in await store.lanes(["a", "b"], 2)) == ["a", "a", "b", "b"]


# ── retry, not afresh ────────────────────────────────────────────────────────


async def test_scheduled_jobs_as_if_they_were_due(store: Store):
    [id] = await put(store)
    why = failure()
    await run_one(store, Again(3, 1, due=timedelta(hours=1), note="later", failure=why))
    assert await store.retry([id], afresh=False) == {id}
    job = await look(store, id)
    assert (job.state, job.failures, job.crashes, job.run_at, job.history) == (JobState.READY, 3, 1, None, (why,))
    [claimed] = (await take(store)).jobs
    assert (claimed.attempt, claimed.failures, claimed.crashes) == (2, 3, 1)


async def test_others_are_left_alone(store: Store):
    [dead] = await put(store)
    await run_one(store, DEAD)
    [running] = await put(store)
    await take(store)
    [ready] = await put(store)
    assert await store.retry([dead, running, ready], afresh=False) == frozenset()
    assert [await state(store, id) for id in (dead, running, ready)] == [
        JobState.DEAD,
        JobState.RUNNING,
        JobState.READY,
    ]


async def test_a_suspect_stays_one(store: Store):
    [id] = await put(store)
    await run_one(store, Again(0, 1, due=S, suspect=True))
    await store.retry([id], afresh=False)
    assert (await take(store)).suspect
