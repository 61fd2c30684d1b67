"""Suspects: a job that ran when a worker died is claimed alone, so that the next crash names its cause."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import (
    JANITOR,
    RELEASE,
    SUSPECT,
    TTL,
    claim,
    ids,
    look,
    put,
    run_one,
    settle_all,
    state,
    take,
)
from headrace.model.job import JobId, JobState
from headrace.model.lease import Lease, Orphan, new_worker_id
from headrace.model.outcome import DONE, Again, Lost
from headrace.policy.retry import decide
from headrace.store.contract import Store
from headrace.task.retry import Retry
from headrace.testing.clock import FakeClock

POLICY = Retry(max_attempts=2, max_crashes=3)


async def crash(store: Store, clock: FakeClock, lease: Lease) -> Orphan:
    """The lease's worker dies, the janitor deals with what it left."""
    assert lease.jobs
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    lost = Lost(orphan.cause, own=orphan.suspect, at=clock.now())
    assert await store.settle(orphan.token, [(at, decide(job, lost, POLICY)) for at, job in orphan.jobs]) == frozenset()
    return orphan


async def make_suspect(store: Store, id: JobId) -> None:
    lease = await take(store, 1)
    assert ids(lease) == [id]
    await settle_all(store, lease, SUSPECT)


async def test_a_suspect_is_claimed_alone(store: Store):
    made = await put(store, 3)
    await make_suspect(store, made[0])
    lease = await take(store, 100)
    assert (ids(lease), lease.suspect) == (made[:1], True)
    lease = await take(store, 100)
    assert (ids(lease), lease.suspect) == (made[1:], False)


async def test_a_claim_stops_before_a_suspect_it_meets_later(store: Store):
    made = await put(store, 5)
    lease = await take(store, 3)
    await store.settle(lease.token, [(0, RELEASE), (1, RELEASE), (2, SUSPECT)])
    leases = [await take(store, 100) for _ in range(3)]
    assert [ids(lease) for lease in leases] == [made[:2], made[2:3], made[3:]]
    assert [lease.suspect for lease in leases] == [False, True, False]
    assert await claim(store) is None


async def test_two_suspects_are_two_leases(store: Store):
    made = await put(store, 3)
    await settle_all(store, await take(store), SUSPECT)
    leases = [await take(store, 100) for _ in range(3)]
    assert [ids(lease) for lease in leases] == [made[0:1], made[1:2], made[2:3]]
    assert all(lease.suspect for lease in leases)


async def test_suspects_are_alone_across_lanes_too(store: Store):
    made = await put(store, 1, tenant="a")
    await make_suspect(store, made[0])
    await put(store, 5, tenant="b")
    await put(store, 5, tenant="c", priority=-1)
    leases: list[Lease] = []
    while lease := await claim(store, 100):
        leases.append(lease)
    assert [ids(lease) for lease in leases if lease.suspect] == [made]
    assert sum(len(lease.jobs) for lease in leases) == 11


async def test_a_suspect_does_not_wait_for_ever_behind_others(store: Store):
    [suspect] = await put(store, tenant="a")
    await make_suspect(store, suspect)
    await put(store, 500, tenant="b")
    leases = [await take(store, 10) for _ in range(3)]
    assert [suspect] in [ids(lease) for lease in leases]


async def test_a_suspect_of_high_priority_comes_first(store: Store):
    await put(store, 5)
    [urgent] = await put(store, priority=5)
    await make_suspect(store, urgent)
    assert ids(await claim(store)) == [urgent]


async def test_suspicion_ends_when_the_settlement_says_so(store: Store):
    made = await put(store, 2)
    await make_suspect(store, made[0])
    await run_one(store, RELEASE)
    lease = await take(store)
    assert (ids(lease), lease.suspect) == (made, False)


async def test_suspicion_stays_through_a_delay(store: Store, clock: FakeClock):
    made = await put(store, 2)
    await run_one(store, Again(0, 1, due=timedelta(seconds=5), suspect=True))
    clock.advance(5)
    await store.promote()
    lease = await take(store)
    assert (ids(lease), lease.suspect, lease.jobs[0].crashes) == (made[:1], True, 1)


async def test_an_operators_retry_forgets_suspicion(store: Store):
    made = await put(store, 2)
    await run_one(store, Again(0, 2, due=TTL, suspect=True))
    await store.retry(made[:1])
    lease = await take(store)
    assert (ids(lease), lease.suspect, lease.jobs[0].crashes) == (made, False, 0)


async def test_an_orphan_says_whether_it_ran_alone(store: Store, clock: FakeClock):
    await put(store, 2)
    lease = await take(store)
    orphan = await crash(store, clock, lease)
    assert orphan.suspect is False
    orphan = await crash(store, clock, await take(store))
    assert orphan.suspect is True
    assert len(orphan.jobs) == 1


async def test_a_lease_of_one_is_no_proof(store: Store, clock: FakeClock):
    """Its worker may have held other leases: only a suspect's lease is alone for sure."""
    await put(store)
    orphan = await crash(store, clock, await take(store, 1))
    assert orphan.suspect is False


async def test_the_poison_job_is_found_and_its_neighbours_are_not_charged(store: Store, clock: FakeClock):
    made = await put(store, 5)
    poison = made[2]
    deaths = 0
    while lease := await claim(store, 100):
        if poison in ids(lease):
            deaths += 1
            await crash(store, clock, lease)
        else:
            await settle_all(store, lease)
    assert deaths == 1 + POLICY.max_crashes
    job = await look(store, poison)
    assert (job.state, job.note, job.crashes, job.failures) == (JobState.DEAD, "worker_lost", 3, 0)
    assert [why.kind for why in job.history] == ["worker_lost"] * 3
    for neighbour in await store.get([id for id in made if id != poison]):
        assert neighbour is not None
        assert (neighbour.state, neighbour.crashes, neighbour.failures) == (JobState.DONE, 0, 0)


async def test_what_was_settled_before_the_crash_is_not_suspected(store: Store, clock: FakeClock):
    made = await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(1, DONE)])
    await crash(store, clock, lease)
    assert await state(store, made[1]) is JobState.DONE
    leases = [await take(store, 100) for _ in range(2)]
    assert [(ids(lease), lease.suspect) for lease in leases] == [(made[:1], True), (made[2:], True)]


async def test_a_crash_of_a_worker_known_to_be_dead_needs_no_waiting(store: Store):
    await put(store)
    dead = new_worker_id()
    await settle_all(store, await take(store, worker=dead), SUSPECT)
    await take(store, worker=dead)
    assert await store.abandon(dead, "killed by SIGSEGV") == 1
    [orphan] = await store.reap(JANITOR, TTL)
    assert (orphan.suspect, orphan.cause) == (True, "killed by SIGSEGV")
