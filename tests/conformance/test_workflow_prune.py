"""prune and gates: what a group counts is kept until the group goes, and in the end nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from conformance.kit import (
    DEAD,
    claim,
    expire,
    find_all,
    look,
    new,
    put,
    queue_stats,
    run_one,
    settle_all,
    state,
    states,
    take,
)
from conformance.test_gates import a_gate, group, promote_all, waiting
from headrace.model.gate import Edge, GateId, Links, Needs
from headrace.model.job import Batch, JobId, JobState, job_id, new_batch
from headrace.model.lease import Lease
from headrace.model.outcome import DONE, Finish, Settlement
from headrace.model.records import Retention
from headrace.model.step import Step
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

DAY = timedelta(days=1)
KEEP = Retention(done=2 * DAY, dead=30 * DAY)
STAYS, GONE = JobState.DONE, None


async def prune(store: Store, *, limit: int = 10_000) -> None:
    """Prune until there is nothing more to do."""
    for _ in range(100):
        if not (await store.prune(KEEP, limit)).more:
            return
    raise AssertionError("prune never ends")


async def end(store: Store, lease: Lease, ends: Mapping[JobId, Settlement]) -> None:
    """Settle these jobs of a lease, in one call."""
    places = {job.id: place for place, job in enumerate(lease.jobs)}
    assert not await store.settle(lease.token, [(places[id], ending) for id, ending in ends.items()])
    await promote_all(store)


async def nested(store: Store) -> tuple[GateId, JobId, list[JobId], JobId]:
    """A group of two jobs that is a member of a gate, beside a job; (the group, that job, the two, the job that waits)."""
    id, inner, outer = new_batch(), a_gate(label="inner"), a_gate()
    jobs = [new(), new(), new(), waiting(outer.id)]
    edges = (
        Edge(job_id(id, 1), job_id(id, 2), inner.id),
        Edge(inner.id, inner.id, outer.id),
        Edge(job_id(id, 0), job_id(id, 0), outer.id),
    )
    await store.enqueue(Batch(id, jobs, (inner, outer), edges))
    return inner.id, job_id(id, 0), [job_id(id, 1), job_id(id, 2)], job_id(id, 3)


async def test_members_of_a_held_group_stay_until_what_waits_for_it_has_run(store: Store, clock: FakeClock):
    gate, members, [waits] = await group(store, 3, Needs.DONE)
    ends = [Finish(JobState.DONE, result=b"1"), DEAD, Finish(JobState.DONE, result=b"3")]
    await end(store, await take(store), dict(zip(members, ends, strict=True)))
    clock.advance(5 * DAY)
    await prune(store)
    assert await states(store, members) == [STAYS, JobState.DEAD, STAYS]
    await store.retry([members[1]])
    await end(store, await take(store), {members[1]: DONE})
    clock.advance(KEEP.done - timedelta(seconds=1))
    await prune(store)
    assert await state(store, waits) is JobState.READY
    assert [(await look(store, id)).result for id in members] == [b"1", None, b"3"]
    clock.advance(timedelta(seconds=1))
    await prune(store)
    assert await store.gates([gate]) == [None]
    assert await states(store, [*members, waits]) == [GONE, GONE, GONE, JobState.READY]


async def test_members_that_ended_each_by_itself_stay_as_well(store: Store, clock: FakeClock):
    await group(store, 4, Needs.DONE)
    ended = [await run_one(store) for _ in range(3)]
    clock.advance(5 * DAY)
    await prune(store)
    assert await states(store, ended) == [STAYS, STAYS, STAYS]


async def test_cancelled_members_stay_too(store: Store, clock: FakeClock):
    _, members, [ended] = await group(store, 2, Needs.ENDED)
    await store.cancel([members[0]])
    clock.advance(5 * DAY)
    await prune(store)
    assert await states(store, [*members, ended]) == [JobState.CANCELLED, JobState.READY, JobState.BLOCKED]


async def test_a_cancelled_member_that_is_deleted_is_no_change_of_its_gate(store: Store, clock: FakeClock):
    gate, members, _ = await group(store, 2, Needs.ENDED)
    await store.cancel([members[0]])
    await promote_all(store)
    before = await store.gates([gate])
    clock.advance(1)
    assert await store.delete([members[0]]) == {members[0]}
    await promote_all(store)
    assert await store.gates([gate]) == before


async def test_a_group_in_a_gate_stays_with_its_members_until_the_gate_goes(store: Store, clock: FakeClock):
    inner, other, members, waits = await nested(store)
    lease = await take(store)
    await end(store, lease, dict.fromkeys(members, DONE))
    clock.advance(5 * DAY)
    await prune(store)
    [kept] = await store.gates([inner])
    assert kept is not None
    assert await states(store, [*members, waits]) == [STAYS, STAYS, JobState.BLOCKED]
    await end(store, lease, {other: DONE})
    await settle_all(store, await take(store))
    clock.advance(KEEP.done)
    await prune(store)
    await prune(store)
    assert await store.gates([inner]) == [None]
    assert await find_all(store) == []


async def test_a_group_that_is_not_sealed_keeps_its_members_if_something_waits_for_it(store: Store, clock: FakeClock):
    _, kept, _ = await group(store, 2, Needs.DONE, sealed=False)
    await end(store, await take(store), dict.fromkeys(kept, DONE))
    _, dropped, _ = await group(store, 2, sealed=False)
    await end(store, await take(store), dict.fromkeys(dropped, DONE))
    clock.advance(5 * DAY)
    await prune(store)
    assert await states(store, [*kept, *dropped]) == [STAYS, STAYS, GONE, GONE]


async def test_other_jobs_go_as_before_from_behind_those_that_are_kept(store: Store, clock: FakeClock):
    _, members, _ = await group(store, 7, Needs.DONE)
    await end(store, await take(store), dict.fromkeys(members[:6], DONE))
    others = await put(store, 5)
    await settle_all(store, await take(store))
    clock.advance(5 * DAY)
    await prune(store, limit=2)
    assert await states(store, members[:6]) == [STAYS] * 6
    assert await states(store, others) == [GONE] * 5


async def test_a_gate_of_another_queue_keeps_its_members(store: Store, clock: FakeClock):
    gate, id = a_gate(), new_batch()
    jobs = [new(queue="far"), new(queue="far"), waiting(gate.id)]
    await store.enqueue(Batch(id, jobs, (gate,), (Edge(job_id(id, 0), job_id(id, 1), gate.id),)))
    members = [job_id(id, 0), job_id(id, 1)]
    lease = await take(store, 2, "far")
    await end(store, lease, {members[0]: DONE})
    clock.advance(5 * DAY)
    await prune(store)
    assert await states(store, members) == [STAYS, JobState.RUNNING]
    await end(store, lease, {members[1]: DONE})
    await settle_all(store, await take(store))
    clock.advance(KEEP.done)
    await prune(store)
    await prune(store)
    assert await states(store, members) == [GONE, GONE]


async def test_after_the_last_retention_nothing_is_left(store: Store, clock: FakeClock):
    _, _, members, _ = await nested(store)
    gates = [(await store.links(members[0])).into[0]]
    held, held_members, callbacks = await group(store, 3, Needs.DONE, Needs.ENDED, Needs.FAILED)
    unsealed, unsealed_members, late = await group(store, 1, Needs.DONE, sealed=False)
    event = a_gate(signalled=True)
    await store.signal(event, b"yes", DAY)
    all_jobs = [job.id for job in await find_all(store)]
    lease = await take(store)
    step = Step("charge", 1, b"d", b"1", clock.now())
    assert not await store.add_steps(lease.token, [(at, step) for at in range(len(lease.jobs))])
    await store.settle(
        lease.token, [(at, DEAD if job.id == held_members[0] else DONE) for at, job in enumerate(lease.jobs)]
    )
    await promote_all(store)
    while (followers := await claim(store)) is not None:
        await settle_all(store, followers)
        await promote_all(store)
    for _ in range(3):
        clock.advance(KEEP.dead + 3 * DAY)
        await prune(store)
        await expire(store, KEEP)
        await promote_all(store)
    await _nothing_left(store, all_jobs, [*gates, held, unsealed, event.id])
    assert {*held_members, *callbacks, *unsealed_members, *late} <= set(all_jobs)


async def _nothing_left(store: Store, jobs: Sequence[JobId], gates: Sequence[GateId]) -> None:
    assert await find_all(store) == []
    assert await store.gates(gates) == [None] * len(gates)
    assert await store.groups() == []
    assert [await store.links(id) for id in [*jobs, *gates]] == [Links()] * (len(jobs) + len(gates))
    assert [await store.read_steps(id) for id in jobs] == [[]] * len(jobs)
    stats = await queue_stats(store)
    assert (stats.ready, stats.blocked, stats.running, stats.dead) == (0, 0, 0, 0)
