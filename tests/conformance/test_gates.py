"""Gates: jobs that wait for jobs, for groups and for signals; what is counted, released, held and cancelled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from conformance.kit import (
    CANCELLED,
    DEAD,
    JANITOR,
    LONG,
    RELEASE,
    TTL,
    claim,
    ids,
    key,
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
from headrace.errors import GroupOver
from headrace.model.gate import (
    Counts,
    Edge,
    GateId,
    Needs,
    NewGate,
    Wait,
    derived_gate_id,
    new_gate_id,
    why_cancelled,
)
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Again, Settlement
from headrace.model.records import CancelAnswer, Filter, Retention
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

READY, BLOCKED, RUNNING = JobState.READY, JobState.BLOCKED, JobState.RUNNING
EVERY_NEED = [Needs.DONE, Needs.ENDED, Needs.FAILED]
ENDS = {"done": DONE, "dead": DEAD, "cancelled": CANCELLED}


async def promote_all(store: Store) -> None:
    """Let everything follow that follows from what was settled."""
    while (await store.promote()).moved:
        pass


def a_gate(*, sealed: bool = True, signalled: bool = False, label: str = "", tenant: str = "") -> NewGate:
    return NewGate(id=new_gate_id(), queue="default", sealed=sealed, signalled=signalled, label=label, tenant=tenant)


def waiting(gate: UUID, needs: Needs = Needs.DONE, **options: Any) -> NewJob:
    return new(wait=Wait(gate, needs), **options)


async def chain(store: Store, length: int, needs: Needs = Needs.DONE) -> list[JobId]:
    """Jobs of which each waits for the one before it, in one call."""
    id = new_batch()
    jobs = [new(), *(waiting(job_id(id, ord), needs) for ord in range(length - 1))]
    await store.enqueue(Batch(id, jobs))
    return [job_id(id, ord) for ord in range(length)]


async def group(
    store: Store, size: int, *waiters: Needs, sealed: bool = True
) -> tuple[GateId, list[JobId], list[JobId]]:
    """A gate with `size` members, and a job that waits for it by each need; (gate, members, waiters)."""
    id, gate = new_batch(), a_gate(sealed=sealed, label="import 7")
    jobs = [new()] * size + [waiting(gate.id, needs) for needs in waiters]
    edges = (Edge(job_id(id, 0), job_id(id, size - 1), gate.id),) if size else ()
    await store.enqueue(Batch(id, jobs, (gate,), edges))
    all_ids = [job_id(id, ord) for ord in range(len(jobs))]
    return gate.id, all_ids[:size], all_ids[size:]


async def counts(store: Store, gate: GateId) -> Counts:
    [found] = await store.gates([gate])
    assert found is not None
    return found.counts


async def settle_one(store: Store, settlement: Settlement = DONE) -> JobId:
    id = await run_one(store, settlement)
    await promote_all(store)
    return id


# ── jobs that wait for a job ─────────────────────────────────────────────────


async def test_a_job_that_waits_for_a_job_is_blocked_until_that_one_is_done(store: Store):
    first, second, third = await chain(store, 3)
    assert await states(store, [first, second, third]) == [READY, BLOCKED, BLOCKED]
    assert (await look(store, second)).waits == (Wait(first, Needs.DONE),)
    assert ids(await claim(store)) == [first]
    assert await claim(store) is None
    assert (await queue_stats(store)).blocked == 2


async def test_each_link_of_a_chain_is_released_by_the_end_of_the_one_before(store: Store):
    links = await chain(store, 5)
    for at, link in enumerate(links):
        assert await settle_one(store) == link
        assert await states(store, links[: at + 1]) == [JobState.DONE] * (at + 1)
    assert await claim(store) is None
    assert (await queue_stats(store)).blocked == 0


@pytest.mark.parametrize("needs", EVERY_NEED)
@pytest.mark.parametrize("end", ENDS)
async def test_what_the_end_of_a_job_means_to_each_need(store: Store, end: str, needs: Needs):
    first, second = await chain(store, 2, needs)
    await settle_one(store, ENDS[end])
    expected = {
        ("done", Needs.DONE): READY,
        ("done", Needs.ENDED): READY,
        ("done", Needs.FAILED): JobState.CANCELLED,
        ("dead", Needs.DONE): BLOCKED,
        ("dead", Needs.ENDED): READY,
        ("dead", Needs.FAILED): READY,
        ("cancelled", Needs.DONE): JobState.CANCELLED,
        ("cancelled", Needs.ENDED): READY,
        ("cancelled", Needs.FAILED): READY,
    }[end, needs]
    job = await look(store, second)
    assert job.state is expected
    if expected is JobState.CANCELLED:
        assert job.note == why_cancelled(needs, first)
    if expected is not BLOCKED:
        assert job.waits == ()


async def test_a_dead_job_holds_what_waits_and_its_replay_lets_it_go_on(store: Store):
    first, second = await chain(store, 2)
    await settle_one(store, DEAD)
    assert await state(store, second) is BLOCKED
    assert await store.retry([first]) == {first}
    assert await settle_one(store) == first
    assert await state(store, second) is READY


async def test_a_dead_job_that_is_deleted_cancels_what_waits(store: Store):
    first, second, third = await chain(store, 3)
    await settle_one(store, DEAD)
    assert await store.delete([first]) == {first}
    await promote_all(store)
    assert await states(store, [first, second, third]) == [None, JobState.CANCELLED, JobState.CANCELLED]
    assert (await look(store, third)).note == why_cancelled(Needs.DONE, second)


async def test_a_cancelled_job_cancels_the_whole_chain_behind_it(store: Store):
    links = await chain(store, 300)
    assert await store.cancel([links[0]], "enough") == {links[0]: CancelAnswer.CANCELLED}
    await promote_all(store)
    assert await states(store, links) == [JobState.CANCELLED] * 300
    assert (await queue_stats(store)).blocked == 0


async def test_an_attempt_that_is_repeated_releases_nothing(store: Store):
    _, second = await chain(store, 2)
    await settle_one(store, RELEASE)
    assert await state(store, second) is BLOCKED
    await settle_one(store, Again(1, 0, timedelta(hours=1)))
    assert await state(store, second) is BLOCKED


async def test_a_lost_lease_counts_nothing(store: Store, clock: FakeClock):
    first, second = await chain(store, 2)
    lease = await take(store)
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert await store.settle(lease.token, [(0, DONE)]) == {0}
    await promote_all(store)
    assert await state(store, second) is BLOCKED
    assert await store.settle(orphan.token, [(0, DONE)]) == frozenset()
    await promote_all(store)
    assert await states(store, [first, second]) == [JobState.DONE, READY]


async def test_a_job_can_wait_for_one_that_was_enqueued_earlier_in_any_state(store: Store, clock: FakeClock):
    del clock
    [ready] = await put(store)
    [later] = await put(store, due=timedelta(hours=1))
    waits = Batch(new_batch(), [waiting(ready), waiting(later), waiting(JobId(job_id(new_batch(), 0)))])
    await store.enqueue(waits)
    on_ready, on_later, on_unknown = (job_id(waits.id, ord) for ord in range(3))
    await promote_all(store)
    assert await states(store, [on_ready, on_later, on_unknown]) == [BLOCKED, BLOCKED, JobState.CANCELLED]
    lease = await take(store)
    assert ids(lease) == [ready]
    while_running = Batch(new_batch(), [waiting(ready)])
    await store.enqueue(while_running)
    on_running = job_id(while_running.id, 0)
    assert await state(store, on_running) is BLOCKED
    await settle_all(store, lease)
    await promote_all(store)
    assert await states(store, [on_ready, on_running]) == [READY, READY]
    when_done = Batch(new_batch(), [waiting(ready)])
    await store.enqueue(when_done)
    await promote_all(store)
    assert await state(store, job_id(when_done.id, 0)) is READY


@pytest.mark.parametrize("count", [1, 100])
async def test_jobs_that_begin_to_wait_for_a_dead_job_go_on_with_its_replay_and_are_cancelled_with_it(
    store: Store, count: int
):
    replayed, deleted = await put(store, 2)
    await settle_all(store, await take(store, 2), DEAD)
    first, second = new_batch(), new_batch()
    await store.enqueue(Batch(first, [waiting(replayed)] * count))
    await store.enqueue(Batch(second, [waiting(deleted)] * count))
    await promote_all(store)
    assert (await queue_stats(store)).blocked == 2 * count
    assert await store.retry([replayed]) == {replayed}
    assert await settle_one(store) == replayed
    assert await store.delete([deleted]) == {deleted}
    await promote_all(store)
    assert await states(store, [job_id(first, ord) for ord in range(count)]) == [READY] * count
    assert await states(store, [job_id(second, ord) for ord in range(count)]) == [JobState.CANCELLED] * count
    assert (await queue_stats(store)).blocked == 0


async def test_a_chain_behind_a_job_that_is_not_stored_is_cancelled_whole(store: Store):
    id, gate = new_batch(), a_gate()
    jobs = [waiting(job_id(new_batch(), 0)), waiting(job_id(id, 0)), waiting(job_id(id, 1)), waiting(gate.id)]
    await store.enqueue(Batch(id, jobs, (gate,), (Edge(job_id(id, 2), job_id(id, 2), gate.id),)))
    await promote_all(store)
    assert await states(store, [job_id(id, ord) for ord in range(4)]) == [JobState.CANCELLED] * 4
    assert (await queue_stats(store)).blocked == 0


async def test_a_delay_counts_from_the_release(store: Store, clock: FakeClock):
    id = new_batch()
    await store.enqueue(Batch(id, [new(), waiting(job_id(id, 0), due=timedelta(hours=1))]))
    second = job_id(id, 1)
    clock.advance(timedelta(hours=2))
    await promote_all(store)
    assert await state(store, second) is BLOCKED
    await settle_one(store)
    job = await look(store, second)
    assert job.state is JobState.SCHEDULED
    assert job.run_at == clock.now() + timedelta(hours=1)
    clock.advance(timedelta(hours=1))
    await promote_all(store)
    assert await state(store, second) is READY


async def test_a_call_that_is_repeated_changes_nothing(store: Store):
    id, gate = new_batch(), a_gate(label="g")
    made = Batch(
        id, [new(), new(), waiting(gate.id)], (gate,), (Edge(job_id(id, 0), job_id(id, 1), gate.id),), (gate.id,)
    )
    await store.enqueue(made)
    await store.enqueue(made)
    assert await counts(store, gate.id) == Counts(2)
    await settle_one(store)
    await store.enqueue(made)
    assert await counts(store, gate.id) == Counts(2, done=1)


async def test_blocked_jobs_are_found_cancelled_and_deleted(store: Store):
    first, second, third = await chain(store, 3)
    page = await store.find(Filter(states=frozenset({BLOCKED})))
    assert [job.id for job in page.jobs] == [third, second]
    assert all(job.state is BLOCKED for job in page.jobs)
    assert await store.retry([second]) == frozenset()
    assert await store.cancel([third]) == {third: CancelAnswer.CANCELLED}
    assert await store.delete([second]) == {second}
    await promote_all(store)
    assert await states(store, [first, second, third]) == [READY, None, JobState.CANCELLED]


# ── groups ───────────────────────────────────────────────────────────────────


async def test_a_gate_counts_how_its_members_end(store: Store):
    gate, members, [done, ended, failed] = await group(store, 4, *EVERY_NEED)
    assert await counts(store, gate) == Counts(4)
    await settle_one(store)
    assert await counts(store, gate) == Counts(4, done=1)
    assert await states(store, [done, ended, failed]) == [BLOCKED] * 3
    dead = await settle_one(store, DEAD)
    assert await counts(store, gate) == Counts(4, done=1, dead=1)
    assert await states(store, [done, ended, failed]) == [BLOCKED, BLOCKED, READY]
    assert await store.cancel([failed]) == {failed: CancelAnswer.CANCELLED}
    lease = await take(store)
    await settle_all(store, lease)
    await promote_all(store)
    assert await counts(store, gate) == Counts(4, done=3, dead=1)
    assert await states(store, [done, ended]) == [BLOCKED, READY]
    await store.cancel([ended])
    await store.retry([dead])
    await promote_all(store)
    assert await counts(store, gate) == Counts(4, done=3)
    assert await settle_one(store) == dead
    assert await counts(store, gate) == Counts(4, done=4)
    assert await state(store, done) is READY
    assert members[1] == dead


async def test_a_lease_of_many_members_counts_at_once(store: Store):
    gate, members, [done] = await group(store, 500, Needs.DONE)
    lease = await take(store, 500)
    assert ids(lease) == members
    ends: list[tuple[int, Settlement]] = [(at, DONE) for at in range(499)]
    await store.settle(lease.token, ends)
    await promote_all(store)
    assert await counts(store, gate) == Counts(500, done=499)
    assert await state(store, done) is BLOCKED
    await store.settle(lease.token, [*ends, (499, DONE)])
    await promote_all(store)
    assert await counts(store, gate) == Counts(500, done=500)
    assert await state(store, done) is READY


async def test_a_cancelled_member_cancels_what_needs_all(store: Store):
    gate, members, [done, ended, failed] = await group(store, 2, *EVERY_NEED)
    await store.cancel([members[0]])
    await promote_all(store)
    assert await states(store, [done, ended, failed]) == [JobState.CANCELLED, BLOCKED, READY]
    assert (await look(store, done)).note == why_cancelled(Needs.DONE, gate)
    await store.delete([members[1]])
    await promote_all(store)
    assert await counts(store, gate) == Counts(2, cancelled=2)
    assert await state(store, ended) is READY


async def test_when_all_are_done_nothing_waits_for_a_failure(store: Store):
    gate, _, [failed] = await group(store, 2, Needs.FAILED)
    lease = await take(store)
    await settle_all(store, lease)
    await promote_all(store)
    job = await look(store, failed)
    assert (job.state, job.note) == (JobState.CANCELLED, why_cancelled(Needs.FAILED, gate))


async def test_a_dead_member_that_is_deleted_counts_as_cancelled(store: Store):
    gate, _, [done] = await group(store, 2, Needs.DONE)
    dead = await settle_one(store, DEAD)
    await store.delete([dead])
    await promote_all(store)
    assert await counts(store, gate) == Counts(2, cancelled=1)
    assert await state(store, done) is JobState.CANCELLED


async def test_a_done_member_that_is_deleted_or_retried(store: Store):
    gate, _, [done] = await group(store, 3, Needs.DONE)
    first = await settle_one(store)
    second = await settle_one(store)
    await store.delete([first])
    await store.retry([second])
    await promote_all(store)
    assert await counts(store, gate) == Counts(3, done=1)
    await settle_all(store, await take(store))
    await promote_all(store)
    assert await counts(store, gate) == Counts(3, done=3)
    assert await state(store, done) is READY


async def test_a_gate_that_is_not_sealed_stays_closed_and_grows(store: Store):
    gate, _, [done, ended] = await group(store, 1, Needs.DONE, Needs.ENDED, sealed=False)
    await settle_one(store)
    assert await states(store, [done, ended]) == [BLOCKED, BLOCKED]
    more = new_batch()
    await store.enqueue(Batch(more, [new(), new()], (), (Edge(job_id(more, 0), job_id(more, 1), gate),)))
    await settle_all(store, await take(store))
    await promote_all(store)
    assert await counts(store, gate) == Counts(3, done=3)
    assert await states(store, [done, ended]) == [BLOCKED, BLOCKED]
    await store.enqueue(Batch(new_batch(), [], seals=(gate,)))
    await promote_all(store)
    assert await states(store, [done, ended]) == [READY, READY]
    [found] = await store.gates([gate])
    assert found is not None
    assert (found.sealed, found.over, found.label, found.queue) == (True, True, "import 7", "default")


async def test_a_member_adds_members_to_a_sealed_gate_while_it_runs(store: Store):
    gate, _, [done] = await group(store, 1, Needs.DONE)
    lease = await take(store)
    more = new_batch()
    await store.enqueue(Batch(more, [new()], (), (Edge(job_id(more, 0), job_id(more, 0), gate),)))
    await settle_all(store, lease)
    await promote_all(store)
    assert await state(store, done) is BLOCKED
    await settle_one(store)
    assert await state(store, done) is READY


async def test_a_gate_that_is_over_or_unknown_takes_no_members(store: Store):
    gate, _, _ = await group(store, 1)
    await settle_one(store)
    for into in (gate, new_gate_id()):
        more = new_batch()
        with pytest.raises(GroupOver):
            await store.enqueue(Batch(more, [new()], (), (Edge(job_id(more, 0), job_id(more, 0), into),)))
        assert await state(store, job_id(more, 0)) is None
    assert await counts(store, gate) == Counts(1, done=1)


async def test_a_gate_without_members_is_open_when_it_is_sealed(store: Store):
    gate, _, [done, ended, failed] = await group(store, 0, *EVERY_NEED, sealed=False)
    assert await states(store, [done, ended, failed]) == [BLOCKED] * 3
    await store.enqueue(Batch(new_batch(), [], seals=(gate,)))
    await promote_all(store)
    assert await states(store, [done, ended, failed]) == [READY, READY, JobState.CANCELLED]


async def test_a_join_over_jobs_of_earlier_calls_counts_what_has_ended(store: Store):
    [over] = await put(store)
    await settle_one(store)
    [dead] = await put(store)
    await settle_one(store, DEAD)
    [open_] = await put(store)
    gate = a_gate()
    made = Batch(new_batch(), [waiting(gate.id)], (gate,), tuple(Edge(id, id, gate.id) for id in (over, dead, open_)))
    await store.enqueue(made)
    await promote_all(store)
    assert await counts(store, gate.id) == Counts(3, done=1, dead=1)
    assert await settle_one(store) == open_
    await store.retry([dead])
    assert await settle_one(store) == dead
    assert await counts(store, gate.id) == Counts(3, done=3)
    assert await state(store, job_id(made.id, 0)) is READY


async def test_a_job_may_count_on_several_gates_and_be_waited_for(store: Store):
    id, one, two = new_batch(), a_gate(), a_gate()
    first, other = job_id(id, 0), job_id(id, 1)
    edges = (Edge(first, other, one.id), Edge(first, first, two.id))
    jobs = [new(), new(), waiting(one.id), waiting(two.id), waiting(first)]
    await store.enqueue(Batch(id, jobs, (one, two), edges))
    on_one, on_two, on_first = (job_id(id, ord) for ord in (2, 3, 4))
    assert (await store.links(first)).into == (one.id, two.id) or (await store.links(first)).into == (two.id, one.id)
    assert await settle_one(store) == first
    assert await states(store, [on_one, on_two, on_first]) == [BLOCKED, READY, READY]


async def test_a_gate_is_a_member_of_another_gate(store: Store):
    inner, [first, second], _ = await group(store, 2)
    outer = a_gate()
    made = Batch(new_batch(), [waiting(outer.id)], (outer,), (Edge(inner, inner, outer.id),))
    await store.enqueue(made)
    await promote_all(store)
    assert await counts(store, outer.id) == Counts(1)
    assert await settle_one(store) == first
    assert await settle_one(store, DEAD) == second
    assert await counts(store, outer.id) == Counts(1, dead=1)
    await store.retry([second])
    await promote_all(store)
    assert await counts(store, outer.id) == Counts(1)
    assert await settle_one(store) == second
    assert await counts(store, outer.id) == Counts(1, done=1)
    assert await state(store, job_id(made.id, 0)) is READY


async def test_a_job_that_met_a_key_is_no_member_and_what_waits_for_it_waits_for_the_first(store: Store):
    [first] = await put(store, key=key("k"))
    id, gate = new_batch(), a_gate()
    jobs = [new(), new(key=key("k")), new(), waiting(job_id(id, 1))]
    answer = await store.enqueue(Batch(id, jobs, (gate,), (Edge(job_id(id, 0), job_id(id, 2), gate.id),)))
    assert answer.existing == {1: first}
    assert await counts(store, gate.id) == Counts(2)
    [edge_one, edge_two] = (await store.links(gate.id)).members
    assert (edge_one.first, edge_two.last) == (job_id(id, 0), job_id(id, 2))
    assert (await look(store, job_id(id, 3))).waits == (Wait(first),)
    assert await settle_one(store) == first
    assert await state(store, job_id(id, 3)) is READY


async def test_what_hangs_together_is_listed_in_pages(store: Store):
    gate, members, waiters = await group(store, 3, Needs.DONE, Needs.ENDED, sealed=False)
    more = new_batch()
    await store.enqueue(Batch(more, [new()], (), (Edge(job_id(more, 0), job_id(more, 0), gate),)))
    links = await store.links(gate)
    edges = (Edge(members[0], members[-1], gate), Edge(job_id(more, 0), job_id(more, 0), gate))
    assert links.members == edges
    assert sorted(links.blocked) == sorted(waiters)
    assert (await store.links(gate, limit=1)).members == edges[:1]
    assert (await store.links(gate, after=edges[0].first)).members == edges[1:]
    assert (await store.links(members[1])).into == (gate,)
    [first, second] = await chain(store, 2)
    assert (await store.links(first)).blocked == (second,)


async def test_groups_are_listed_newest_first_by_tenant(store: Store):
    gates = [a_gate(label=f"g{n}", tenant=tenant) for n, tenant in enumerate(["a", "b", "a"])]
    unnamed = a_gate()
    await store.enqueue(Batch(new_batch(), [], (*gates, unnamed)))
    newest = sorted(gates, key=lambda gate: gate.id, reverse=True)
    assert [group.id for group in await store.groups()] == [gate.id for gate in newest]
    assert [group.label for group in await store.groups(tenant="b")] == ["g1"]
    assert [group.id for group in await store.groups(before=newest[0].id, limit=1)] == [newest[1].id]
    assert await store.gates([unnamed.id, new_gate_id()]) == [(await store.gates([unnamed.id]))[0], None]


# ── signals and suspension ───────────────────────────────────────────────────


async def test_a_signal_opens_its_gate_once_and_its_value_stays(store: Store):
    gate = NewGate(id=derived_gate_id("", "paid", "42"), queue="default", signalled=True)
    made = Batch(new_batch(), [waiting(gate.id)], (gate,))
    await store.enqueue(made)
    assert await state(store, job_id(made.id, 0)) is BLOCKED
    assert await store.signal(gate, b"yes", LONG) is True
    assert await store.signal(gate, b"no", LONG) is False
    await promote_all(store)
    assert await state(store, job_id(made.id, 0)) is READY
    [found] = await store.gates([gate.id])
    assert found is not None
    assert (found.value, found.signalled, found.counts) == (b"yes", True, Counts(1, done=1))


async def test_a_signal_that_comes_first_is_remembered(store: Store):
    gate = NewGate(id=derived_gate_id("", "paid", "43"), queue="default", signalled=True)
    assert await store.signal(gate, b"", LONG) is True
    made = Batch(new_batch(), [waiting(gate.id)], (gate,))
    await store.enqueue(made)
    await promote_all(store)
    assert await state(store, job_id(made.id, 0)) is READY


async def test_a_suspended_job_waits_for_the_first_of_several_gates(store: Store):
    [id] = await put(store)
    one, two = a_gate(signalled=True), a_gate(signalled=True)
    lease = await take(store)
    again = Again(0, 0, note="waits", gates=(one, two), waits=(Wait(one.id), Wait(two.id)))
    assert await store.settle(lease.token, [(0, again)]) == frozenset()
    job = await look(store, id)
    assert (job.state, job.attempt, job.run_at, job.note) == (BLOCKED, 1, None, "waits")
    assert set(job.waits) == set(again.waits)
    assert await claim(store) is None
    await store.signal(two, b"2", LONG)
    await promote_all(store)
    assert await state(store, id) is READY
    await store.signal(one, b"1", LONG)
    await promote_all(store)
    lease = await take(store)
    assert [(job.id, job.attempt) for job in lease.jobs] == [(id, 2)]
    assert await claim(store) is None


async def test_a_suspension_on_a_gate_that_is_open_makes_the_job_ready(store: Store):
    [id] = await put(store)
    gate = a_gate(signalled=True)
    await store.signal(gate, b"1", LONG)
    lease = await take(store)
    await store.settle(lease.token, [(0, Again(0, 0, gates=(gate,), waits=(Wait(gate.id),)))])
    await promote_all(store)
    assert await state(store, id) is READY


async def test_a_suspended_job_is_ready_at_its_time_at_the_latest(store: Store, clock: FakeClock):
    [id] = await put(store)
    gate = a_gate(signalled=True)
    lease = await take(store)
    await store.settle(lease.token, [(0, Again(0, 0, timedelta(hours=1), gates=(gate,), waits=(Wait(gate.id),)))])
    job = await look(store, id)
    assert (job.state, job.run_at) == (BLOCKED, clock.now() + timedelta(hours=1))
    assert (await store.promote()).next_due == timedelta(hours=1)
    clock.advance(timedelta(hours=1))
    await promote_all(store)
    assert await state(store, id) is READY
    lease = await take(store)
    await store.signal(gate, b"late", LONG)
    await settle_all(store, lease)
    await promote_all(store)
    assert await state(store, id) is JobState.DONE


@pytest.mark.parametrize("end", ENDS)
async def test_a_suspended_job_goes_on_however_what_it_waits_for_ended(store: Store, end: str):
    [parent] = await put(store)
    lease = await take(store)
    child, gate = new_batch(), a_gate()
    await store.enqueue(Batch(child, [new()], (gate,), (Edge(job_id(child, 0), job_id(child, 0), gate.id),)))
    await store.settle(lease.token, [(0, Again(0, 0, waits=(Wait(gate.id, Needs.ENDED),)))])
    assert await state(store, parent) is BLOCKED
    assert await settle_one(store, ENDS[end]) == job_id(child, 0)
    assert await state(store, parent) is READY


async def test_a_suspended_job_takes_its_old_place(store: Store):
    [first] = await put(store)
    lease = await take(store)
    gate = a_gate(signalled=True)
    await store.settle(lease.token, [(0, Again(0, 0, gates=(gate,), waits=(Wait(gate.id),)))])
    [second] = await put(store)
    await store.signal(gate, b"", LONG)
    await promote_all(store)
    assert ids(await claim(store)) == [first, second]


async def test_cancel_reaches_a_suspended_job_and_one_that_is_about_to_suspend(store: Store):
    suspended, running = await put(store, 2)
    gate = a_gate(signalled=True)
    again = Again(0, 0, gates=(gate,), waits=(Wait(gate.id),))
    lease = await take(store)
    await store.settle(lease.token, [(0, again)])
    assert await store.cancel([suspended, running], "stop") == {
        suspended: CancelAnswer.CANCELLED,
        running: CancelAnswer.ASKED,
    }
    await store.settle(lease.token, [(1, again)])
    await promote_all(store)
    assert await states(store, [suspended, running]) == [JobState.CANCELLED] * 2
    assert (await store.links(gate.id)).blocked == ()
    await store.signal(gate, b"", LONG)
    await promote_all(store)
    assert await claim(store) is None


async def test_a_refused_suspension_changes_nothing(store: Store):
    await put(store)
    gate = a_gate(signalled=True)
    assert await store.settle(new_token(), [(0, Again(0, 0, gates=(gate,), waits=(Wait(gate.id),)))]) == {0}
    assert await store.gates([gate.id]) == [None]


# ── retention ────────────────────────────────────────────────────────────────


async def test_prune_drops_gates_that_are_over_and_keeps_the_others(store: Store, clock: FakeClock):
    over, _, _ = await group(store, 1)
    await settle_one(store)
    held, _, [waits] = await group(store, 1, Needs.DONE)
    await settle_one(store, DEAD)
    event = a_gate(signalled=True)
    await store.signal(event, b"x", timedelta(hours=12))
    clock.advance(timedelta(days=1))
    while (await store.prune(Retention(done=timedelta(days=1)))).more:
        pass
    dropped, kept, told = await store.gates([over, held, event.id])
    assert (dropped, told) == (None, None)
    assert kept is not None
    assert await state(store, waits) is BLOCKED


async def test_prune_cancels_what_waits_for_a_gate_that_was_never_sealed(store: Store, clock: FakeClock):
    gate, _, [done] = await group(store, 0, Needs.DONE, sealed=False)
    clock.advance(timedelta(days=14) - timedelta(seconds=1))
    await store.prune(Retention())
    assert await state(store, done) is BLOCKED
    clock.advance(timedelta(seconds=1))
    await store.prune(Retention())
    await promote_all(store)
    job = await look(store, done)
    assert (job.state, job.note) == (JobState.CANCELLED, "its group was never completed")
    assert await store.gates([gate]) == [None]
