"""Leases: the token is the fence; heartbeats renew, reap takes over, a stale token changes nothing."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    DEAD,
    JANITOR,
    RELEASE,
    TTL,
    WORKER,
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
from headrace.model.job import JobId, JobState
from headrace.model.lease import Stop, new_token, new_worker_id
from headrace.model.outcome import DONE, Finish
from headrace.model.records import Filter, Retention
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

TICK = timedelta(microseconds=1)


# ── heartbeat ────────────────────────────────────────────────────────────────


async def test_a_heartbeat_renews_a_lease(store: Store, clock: FakeClock):
    await put(store, 2)
    lease = await take(store, ttl=TTL)
    for _ in range(5):
        clock.advance(TTL - TICK)
        pulse = await store.heartbeat([lease.token], TTL)
        assert (pulse.lost, pulse.stops) == (frozenset(), ())
        assert await store.reap(JANITOR, TTL) == []
    clock.advance(TTL)
    assert len(await store.reap(JANITOR, TTL)) == 1


async def test_a_heartbeat_renews_only_what_it_names(store: Store, clock: FakeClock):
    await put(store, 2)
    kept, left = await take(store, 1), await take(store, 1)
    clock.advance(TTL - TICK)
    await store.heartbeat([kept.token], TTL)
    clock.advance(TICK)
    [orphan] = await store.reap(JANITOR, TTL)
    assert [job.id for _, job in orphan.jobs] == ids(left)


async def test_a_heartbeat_may_change_the_time_to_live(store: Store, clock: FakeClock):
    await put(store)
    lease = await take(store)
    await store.heartbeat([lease.token], timedelta(seconds=100))
    clock.advance(99)
    assert await store.reap(JANITOR, TTL) == []
    await store.heartbeat([lease.token], timedelta(seconds=1))
    clock.advance(1)
    assert len(await store.reap(JANITOR, TTL)) == 1


async def test_a_heartbeat_hears_which_leases_are_lost(store: Store, clock: FakeClock):
    await put(store, 3)
    ended, taken_over, alive = [await take(store, 1) for _ in range(3)]
    await settle_all(store, ended)
    await store.heartbeat([alive.token], TTL * 3)
    clock.advance(TTL)
    await store.reap(JANITOR, TTL)
    never = new_token()
    pulse = await store.heartbeat([ended.token, taken_over.token, alive.token, never], TTL)
    assert pulse.lost == {ended.token, taken_over.token, never}


async def test_a_heartbeat_of_a_lost_lease_changes_nothing(store: Store, clock: FakeClock):
    await put(store)
    lease = await take(store)
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    before = await dump(store)
    assert (await store.heartbeat([lease.token], TTL * 9)).lost == {lease.token}
    assert await dump(store) == before
    clock.advance(TTL)
    [again] = await store.reap(JANITOR, TTL)
    assert again.jobs == orphan.jobs


async def test_a_heartbeat_without_leases(store: Store):
    pulse = await store.heartbeat([], TTL)
    assert (pulse.lost, pulse.stops) == (frozenset(), ())


async def test_a_heartbeat_for_many_leases(store: Store, clock: FakeClock):
    await put(store, 60)
    leases = [await take(store, 1) for _ in range(60)]
    clock.advance(TTL / 2)
    assert (await store.heartbeat([lease.token for lease in leases], TTL)).lost == frozenset()
    clock.advance(TTL / 2)
    assert await store.reap(JANITOR, TTL) == []


async def test_a_heartbeat_hears_what_to_stop_until_it_is_settled(store: Store):
    made = await put(store, 4)
    lease, other = await take(store, 3), await take(store, 1)
    await store.cancel([made[1], made[2]])
    tokens = [lease.token, other.token]
    for _ in range(2):
        stops = (await store.heartbeat(tokens, TTL)).stops
        assert sorted(stops, key=lambda stop: stop.position) == [Stop(lease.token, 1), Stop(lease.token, 2)]
    await store.settle(lease.token, [(1, DONE)])
    assert (await store.heartbeat(tokens, TTL)).stops == (Stop(lease.token, 2),)
    assert (await store.heartbeat([other.token], TTL)).stops == ()


# ── expiry ───────────────────────────────────────────────────────────────────


async def test_an_expired_lease_is_good_until_somebody_takes_it_over(store: Store, clock: FakeClock):
    made = await put(store, 2)
    lease = await take(store)
    clock.advance(TTL * 10)
    assert await claim(store) is None
    assert await states(store, made) == [JobState.RUNNING] * 2
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert (await store.heartbeat([lease.token], TTL)).lost == frozenset()
    assert await store.reap(JANITOR, TTL) == []
    await store.settle(lease.token, [(1, DONE)])
    assert await states(store, made) == [JobState.DONE] * 2


async def test_reap_takes_a_lease_at_the_moment_it_expires(store: Store, clock: FakeClock):
    await put(store)
    await take(store)
    clock.advance(TTL - TICK)
    assert await store.reap(JANITOR, TTL) == []
    clock.advance(TICK)
    assert len(await store.reap(JANITOR, TTL)) == 1


async def test_reap_takes_over_under_a_fresh_token(store: Store, clock: FakeClock):
    made = await put(store, 3, payload=b"p", priority=4, tenant="acme")
    holder = new_worker_id()
    lease = await take(store, worker=holder)
    claimed_at = clock.now()
    await store.settle(lease.token, [(1, DONE)])
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert orphan.token != lease.token
    assert (orphan.worker, orphan.cause, orphan.suspect) == (holder, "lease expired", False)
    assert sorted(orphan.jobs) == [(0, lease.jobs[0]), (2, lease.jobs[2])]
    job = await look(store, made[0])
    assert (job.state, job.worker, job.attempt, job.claimed_at) == (JobState.RUNNING, JANITOR, 1, claimed_at)
    assert await counts(store) == {"running": 2}


async def test_what_was_reaped_is_settled_by_its_old_positions(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE)])
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert await store.settle(orphan.token, [(2, RELEASE), (1, DEAD)]) == frozenset()
    assert await states(store, made) == [JobState.DONE, JobState.DEAD, JobState.READY]
    assert (await store.heartbeat([orphan.token], TTL)).lost == {orphan.token}


async def test_what_was_settled_and_forgotten_leaves_the_other_positions_as_they_were(store: Store, clock: FakeClock):
    for forget in (store.delete, lambda ids: prune_all(store, ids)):
        made = await put(store, 6)
        lease = await take(store)
        gone = [made[0], made[2], made[3]]
        await store.settle(lease.token, [(0, DONE), (2, DONE), (3, DEAD)])
        clock.advance(timedelta(days=3))
        await forget(gone)
        assert await states(store, gone) == [None] * 3
        [orphan] = await store.reap(JANITOR, TTL)
        assert sorted(orphan.jobs) == [(at, lease.jobs[at]) for at in (1, 4, 5)]
        await store.cancel([made[4]])
        assert (await store.heartbeat([orphan.token], TTL)).stops == (Stop(orphan.token, 4),)
        fresh = new_token()
        assert await store.detach(orphan.token, 5, fresh) is True
        assert await store.settle(fresh, [(0, DEAD)]) == frozenset()
        assert await store.settle(orphan.token, [(1, DONE), (4, RELEASE)]) == frozenset()
        assert await states(store, [made[1], *made[4:]]) == [JobState.DONE, JobState.CANCELLED, JobState.DEAD]


async def prune_all(store: Store, ids: list[JobId]) -> None:
    keep = Retention(done=timedelta(hours=1), dead=timedelta(hours=1))
    while (await store.prune(keep)).more:
        pass
    await store.delete(await store.expired_dead(keep))
    assert await states(store, ids) == [None] * len(ids)


async def test_a_zombies_settle_changes_nothing(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    before = await dump(store)
    late = [(0, Finish(JobState.DONE, result=b"late")), (1, RELEASE), (2, DEAD)]
    assert await store.settle(lease.token, late) == {0, 1, 2}
    assert await dump(store) == before
    # Nor later, when the jobs run elsewhere or are over.
    await store.settle(orphan.token, [(0, RELEASE), (1, RELEASE), (2, DONE)])
    await take(store, 1)
    before = await dump(store)
    assert await store.settle(lease.token, late) == {0, 1, 2}
    assert await store.settle(orphan.token, late) == {0, 1, 2}
    assert await dump(store) == before
    assert await states(store, made) == [JobState.RUNNING, JobState.READY, JobState.DONE]


async def test_a_partly_settled_lease_is_partly_lost(store: Store, clock: FakeClock):
    made = await put(store, 2)
    lease = await take(store)
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    clock.advance(TTL)
    await store.reap(JANITOR, TTL)
    assert await store.settle(lease.token, [(1, DONE)]) == {1}
    assert await states(store, made) == [JobState.DONE, JobState.RUNNING]


async def test_an_orphan_may_be_kept_alive_and_may_be_orphaned_again(store: Store, clock: FakeClock):
    await put(store)
    lease = await take(store)
    clock.advance(TTL)
    [first] = await store.reap(JANITOR, TTL)
    clock.advance(TTL - TICK)
    await store.heartbeat([first.token], TTL)
    clock.advance(TTL - TICK)
    assert await store.reap(JANITOR, TTL) == []
    clock.advance(TICK)
    [second] = await store.reap(WORKER, TTL)
    assert (second.worker, second.jobs) == (JANITOR, first.jobs)
    assert len({lease.token, first.token, second.token}) == 3
    assert await store.settle(first.token, [(0, DONE)]) == {0}
    assert await store.settle(second.token, [(0, DONE)]) == frozenset()


async def test_what_was_done_before_a_lease_was_reaped_keeps_its_worker(store: Store, clock: FakeClock):
    made = await put(store, 8)
    lease = await take(store, ttl=TTL)
    kept = Finish(JobState.DONE, result=b"kept", result_ttl=timedelta(hours=1))
    await store.settle(lease.token, [(0, DONE), (1, kept), (5, Finish(JobState.DONE, result=b"soon"))])
    before = [await look(store, id) for id in made]
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert [position for position, _ in orphan.jobs] == [2, 3, 4, 6, 7]
    for position in (0, 1, 5):
        # Some stores do not keep which worker did a job.
        assert await look(store, made[position]) == before[position]
        assert before[position].worker in {WORKER, None}
    assert (await look(store, made[2])).worker == JANITOR
    await store.settle(orphan.token, [(position, DONE) for position, _ in orphan.jobs])
    assert [await look(store, made[position]) for position in (0, 1, 5)] == [before[position] for position in (0, 1, 5)]
    assert [job.id for job in (await store.find(Filter(states=frozenset({JobState.DONE})), limit=100)).jobs] == made[
        ::-1
    ]
    clock.advance(timedelta(hours=1))
    await store.prune(Retention(done=timedelta(days=1), dead=timedelta(days=1)), 1000)
    assert [(await look(store, id)).result_expired for id in made[:2]] == [False, True]
    assert (await look(store, made[5])).result == b"soon"


async def test_reap_takes_a_bounded_number_of_leases_the_oldest_first(store: Store, clock: FakeClock):
    made = await put(store, 5)
    for _ in range(5):
        await take(store, 1)
        clock.advance(1)
    clock.advance(TTL)
    seen = [[job.id for o in await store.reap(JANITOR, TTL, limit=2) for _, job in o.jobs] for _ in range(4)]
    assert seen == [made[0:2], made[2:4], made[4:5], []]


async def test_reap_of_nothing(store: Store):
    await put(store)
    assert await store.reap(JANITOR, TTL) == []
    assert await counts(store) == {"ready": 1}


# ── abandon ──────────────────────────────────────────────────────────────────


async def test_abandon_expires_a_dead_workers_leases_at_once(store: Store):
    made = await put(store, 4)
    dead, alive = new_worker_id(), new_worker_id()
    await take(store, 2, worker=dead)
    await take(store, 1, worker=dead)
    await take(store, 1, worker=alive)
    assert await store.abandon(dead, "killed by SIGSEGV") == 2
    orphans = await store.reap(JANITOR, TTL)
    assert sorted(job.id for orphan in orphans for _, job in orphan.jobs) == made[:3]
    assert {(orphan.worker, orphan.cause) for orphan in orphans} == {(dead, "killed by SIGSEGV")}
    assert await states(store, made) == [JobState.RUNNING] * 4


async def test_abandon_moves_no_job_by_itself(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.abandon(WORKER, "killed by SIGKILL")
    assert await state(store, id) is JobState.RUNNING
    assert await claim(store) is None
    # The store checks that the token exists, not the time: no worker has taken the lease over yet.
    assert await store.settle(lease.token, [(0, DONE)]) == frozenset()
    assert await store.reap(JANITOR, TTL) == []


async def test_abandon_of_a_worker_without_leases(store: Store):
    assert await store.abandon(new_worker_id(), "killed") == 0


async def test_the_cause_of_a_death_is_told_once(store: Store, clock: FakeClock):
    await put(store)
    dead = new_worker_id()
    await take(store, worker=dead)
    await store.abandon(dead, "out of memory")
    [first] = await store.reap(JANITOR, TTL)
    clock.advance(TTL)
    [second] = await store.reap(JANITOR, TTL)
    assert (first.cause, second.cause) == ("out of memory", "lease expired")


async def test_promote_tells_when_the_first_lease_expires(store: Store, clock: FakeClock):
    assert (await store.promote()).next_expiry is None
    await put(store, 2)
    await claim(store, 1, ttl=2 * TTL)
    lease = await claim(store, 1, ttl=TTL)
    assert lease is not None
    promoted = await store.promote()
    assert (promoted.next_expiry, promoted.expired) == (TTL, False)
    clock.advance(TTL)
    promoted = await store.promote()
    assert (promoted.next_expiry, promoted.expired) == (timedelta(0), True)
