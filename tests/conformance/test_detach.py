"""detach: one job of a lease gets a lease of its own, for a transaction that locks nothing else."""

from __future__ import annotations

from conformance.kit import (
    DEAD,
    JANITOR,
    RELEASE,
    SUSPECT,
    TTL,
    claim,
    counts,
    dump,
    ids,
    look,
    put,
    settle_all,
    state,
    states,
    take,
)
from headrace.model.job import JobState
from headrace.model.lease import Stop, new_token, new_worker_id
from headrace.model.outcome import DONE
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


async def test_a_detached_job_is_settled_under_its_own_token(store: Store):
    made = await put(store, 3)
    lease, fresh = await take(store), new_token()
    assert await store.detach(lease.token, 1, fresh) is True
    assert await store.settle(fresh, [(0, DONE)]) == frozenset()
    assert await states(store, made) == [JobState.RUNNING, JobState.DONE, JobState.RUNNING]
    assert await store.settle(lease.token, [(0, DONE), (2, DONE)]) == frozenset()
    assert (await store.heartbeat([lease.token, fresh], TTL)).lost == {lease.token, fresh}


async def test_detaching_changes_nothing_to_see(store: Store):
    await put(store, 3)
    lease = await take(store)
    before = await dump(store)
    await store.detach(lease.token, 1, new_token())
    assert await dump(store) == before
    assert await claim(store) is None


async def test_the_old_lease_forgets_the_job_as_if_settled(store: Store):
    made = await put(store, 2)
    lease, fresh = await take(store), new_token()
    await store.detach(lease.token, 0, fresh)
    before = await dump(store)
    assert await store.settle(lease.token, [(0, DEAD)]) == frozenset()
    assert await dump(store) == before
    assert await store.settle(lease.token, [(1, DONE)]) == frozenset()
    assert (await store.heartbeat([lease.token, fresh], TTL)).lost == {lease.token}
    assert await store.settle(fresh, [(0, RELEASE)]) == frozenset()
    assert await states(store, made) == [JobState.READY, JobState.DONE]


async def test_a_lease_of_one_may_be_detached(store: Store):
    [id] = await put(store)
    lease, fresh = await take(store), new_token()
    assert await store.detach(lease.token, 0, fresh) is True
    assert (await store.heartbeat([lease.token, fresh], TTL)).lost == {lease.token}
    assert await store.settle(lease.token, [(0, DONE)]) == {0}
    assert await state(store, id) is JobState.RUNNING
    assert await store.settle(fresh, [(0, DONE)]) == frozenset()
    assert await state(store, id) is JobState.DONE


async def test_a_detached_lease_may_be_detached_again(store: Store):
    [id] = await put(store)
    lease, first, second = await take(store), new_token(), new_token()
    await store.detach(lease.token, 0, first)
    assert await store.detach(first, 0, second) is True
    assert await store.settle(first, [(0, DEAD)]) == {0}
    assert await store.settle(second, [(0, DONE)]) == frozenset()
    assert await state(store, id) is JobState.DONE


async def test_every_job_may_be_detached(store: Store):
    made = await put(store, 5)
    lease = await take(store)
    fresh = [new_token() for _ in made]
    for at, token in enumerate(fresh):
        assert await store.detach(lease.token, at, token) is True
    assert await counts(store) == {"running": 5}
    for token in fresh:
        await store.settle(token, [(0, DONE)])
    assert await states(store, made) == [JobState.DONE] * 5


async def test_a_lost_lease_gives_nothing_away(store: Store, clock: FakeClock):
    await put(store, 2)
    lease = await take(store)
    clock.advance(TTL)
    await store.reap(JANITOR, TTL)
    fresh = new_token()
    before = await dump(store)
    assert await store.detach(lease.token, 0, fresh) is False
    assert await store.detach(new_token(), 0, fresh) is False
    assert await store.settle(fresh, [(0, DONE)]) == {0}
    assert await dump(store) == before


async def test_a_settled_or_unknown_position_gives_nothing_away(store: Store):
    await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE), (1, RELEASE)])
    before = await dump(store)
    for position in (0, 1, 3, -1):
        assert await store.detach(lease.token, position, new_token()) is False
    assert await dump(store) == before


async def test_the_new_lease_lives_like_the_old_one(store: Store, clock: FakeClock):
    made = await put(store, 2)
    holder = new_worker_id()
    lease, fresh = await take(store, worker=holder), new_token()
    claimed_at = clock.now()
    clock.advance(1)
    await store.detach(lease.token, 1, fresh)
    job = await look(store, made[1])
    assert (job.worker, job.claimed_at, job.attempt) == (holder, claimed_at, 1)
    clock.advance(TTL.total_seconds() - 2)
    await store.heartbeat([lease.token], TTL)
    clock.advance(1)
    [orphan] = await store.reap(JANITOR, TTL)
    assert (orphan.jobs, orphan.worker, orphan.suspect) == ([(0, lease.jobs[1])], holder, False)


async def test_the_new_lease_is_abandoned_with_its_worker(store: Store):
    await put(store, 2)
    holder = new_worker_id()
    lease = await take(store, worker=holder)
    await store.detach(lease.token, 1, new_token())
    assert await store.abandon(holder, "killed by SIGKILL") == 2
    orphans = await store.reap(JANITOR, TTL)
    assert sorted(job.id for orphan in orphans for _, job in orphan.jobs) == ids(lease)


async def test_a_cancel_follows_the_job(store: Store):
    made = await put(store, 2)
    lease, fresh = await take(store), new_token()
    await store.cancel(made[:1], "before")
    await store.detach(lease.token, 0, fresh)
    assert (await store.heartbeat([lease.token, fresh], TTL)).stops == (Stop(fresh, 0),)
    await store.detach(lease.token, 1, other := new_token())
    await store.cancel(made[1:], "after")
    assert (await store.heartbeat([other], TTL)).stops == (Stop(other, 0),)
    await store.settle(fresh, [(0, RELEASE)])
    assert (await look(store, made[0])).note == "before"
    assert await state(store, made[0]) is JobState.CANCELLED


async def test_suspicion_follows_the_job(store: Store):
    await put(store)
    await settle_all(store, await take(store), SUSPECT)
    holder = new_worker_id()
    lease, fresh = await take(store, worker=holder), new_token()
    assert lease.suspect
    await store.detach(lease.token, 0, fresh)
    await store.abandon(holder, "killed")
    [orphan] = await store.reap(JANITOR, TTL)
    assert (orphan.suspect, orphan.jobs) == (True, [(0, lease.jobs[0])])
