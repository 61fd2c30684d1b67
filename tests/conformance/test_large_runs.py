"""Large runs of jobs that wait for one thing, which a store may keep as one: each verb meets them before the wait is over, and after it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from conformance.kit import (
    DEAD,
    JANITOR,
    LONG,
    RELEASE,
    TTL,
    claim,
    counts,
    find_all,
    ids,
    look,
    new,
    put,
    queue_stats,
    rule,
    settle_all,
    state,
    states,
    take,
)
from conformance.test_gates import ENDS, EVERY_NEED, a_gate, promote_all, waiting
from headrace.model.gate import NEVER_SEALED, Edge, GateId, Needs, NewGate, Wait, new_gate_id, why_cancelled
from headrace.model.job import Batch, JobId, JobState, job_id, new_batch
from headrace.model.outcome import DONE, Again
from headrace.model.records import CancelAnswer, Filter, Retention
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

RUN = 80
"""Jobs of a run: the Redis store keeps 64 and more as a lane."""
READY, BLOCKED, CANCELLED = JobState.READY, JobState.BLOCKED, JobState.CANCELLED
WAITING = Filter(states=frozenset({BLOCKED}))


def an_event(queue: str = "default") -> NewGate:
    return NewGate(id=new_gate_id(), queue=queue, signalled=True)


async def run_behind(
    store: Store, gate: NewGate, *, size: int = RUN, needs: Needs = Needs.DONE, **options: Any
) -> list[JobId]:
    """One call of jobs that wait for a gate."""
    id = new_batch()
    await store.enqueue(Batch(id, [waiting(gate.id, needs, **options)] * size, (gate,)))
    return [job_id(id, ord) for ord in range(size)]


async def run_behind_a_job(store: Store, needs: Needs = Needs.DONE, *, size: int = RUN) -> tuple[JobId, list[JobId]]:
    """One call: a job, and a run of jobs that wait for it."""
    id = new_batch()
    first = job_id(id, 0)
    await store.enqueue(Batch(id, [new(queue="first"), *[waiting(first, needs)] * size]))
    return first, [job_id(id, ord) for ord in range(1, size + 1)]


async def opened(store: Store, gate: NewGate) -> None:
    assert await store.signal(gate, b"", LONG)
    await promote_all(store)


async def waits_for(store: Store, gate: GateId) -> list[JobId]:
    return [JobId(id) for id in (await store.links(gate)).blocked]


async def drained(store: Store, limit: int = 30) -> list[JobId]:
    """Claim and settle whatever is ready; the jobs in their order."""
    done: list[JobId] = []
    while (lease := await claim(store, limit)) is not None:
        done += ids(lease)
        await settle_all(store, lease)
    return done


# ── until the wait is over, and after it ─────────────────────────────────────


async def test_a_run_is_blocked_until_its_gate_opens_and_then_goes_in_its_order(store: Store):
    gate = an_event()
    run = await run_behind(store, gate, tenant="x")
    assert await counts(store) == {"blocked": RUN}
    assert await claim(store) is None
    assert await store.lanes(["default"]) == []
    assert await store.ahead(run[0]) is None
    job = await look(store, run[7])
    assert (job.state, job.waits, job.tenant, job.attempt) == (BLOCKED, (Wait(gate.id),), "x", 0)
    await opened(store, gate)
    assert await counts(store) == {"ready": RUN}
    job = await look(store, run[7])
    assert (job.state, job.waits, job.tenant) == (READY, (), "x")
    [lane] = await store.lanes(["default"])
    assert (lane.jobs, lane.tenant, lane.id) == (RUN, "x", 0)
    ahead = await store.ahead(run[7])
    assert ahead is not None
    assert ahead.lane == 7
    assert await drained(store) == run
    assert set(await states(store, run)) == {JobState.DONE}
    assert await counts(store) == {}


@pytest.mark.parametrize("needs", EVERY_NEED)
@pytest.mark.parametrize("end", ENDS)
async def test_what_the_end_of_a_job_means_to_a_run(store: Store, end: str, needs: Needs):
    first, run = await run_behind_a_job(store, needs)
    lease = await take(store, 1, "first")
    await settle_all(store, lease, ENDS[end])
    await promote_all(store)
    cancelled = {("done", Needs.FAILED), ("cancelled", Needs.DONE)}
    expected = BLOCKED if (end, needs) == ("dead", Needs.DONE) else CANCELLED if (end, needs) in cancelled else READY
    assert set(await states(store, run)) == {expected}
    note = (await look(store, run[-1])).note
    assert note == (why_cancelled(needs, first) if expected is CANCELLED else None)


async def test_the_oldest_ready_job_is_none_that_waits(store: Store, clock: FakeClock):
    gate = an_event()
    await run_behind(store, gate)
    assert (await queue_stats(store)).oldest_ready is None
    clock.advance(timedelta(minutes=5))
    await opened(store, gate)
    assert (await queue_stats(store)).oldest_ready == timedelta(minutes=5)


async def test_runs_of_several_calls_wait_for_one_gate(store: Store):
    gate = an_event()
    runs = [await run_behind(store, gate) for _ in range(3)]
    few = await run_behind(store, gate, size=2)
    assert await counts(store) == {"blocked": 3 * RUN + 2}
    await opened(store, gate)
    assert sorted(await drained(store)) == sorted([*runs[0], *runs[1], *runs[2], *few])


async def test_a_run_that_waits_for_an_open_gate_is_ready(store: Store):
    gate = an_event()
    first = await run_behind(store, gate)
    await opened(store, gate)
    second = await run_behind(store, gate)
    third = await run_behind(store, gate, due=timedelta(seconds=5))
    await promote_all(store)
    assert await counts(store) == {"ready": 2 * RUN, "scheduled": RUN}
    assert sorted(await drained(store)) == [*first, *second]
    assert set(await states(store, third)) == {JobState.SCHEDULED}
    assert await counts(store) == {"scheduled": RUN}


async def test_a_gate_that_is_not_over_any_more_blocks_the_next_run(store: Store):
    """A member is retried, while jobs of the first run are still ready."""
    id, gate = new_batch(), a_gate()
    member = job_id(id, 0)
    await store.enqueue(Batch(id, [new(queue="first")], (gate,), (Edge(member, member, gate.id),)))
    before = await run_behind(store, gate)
    await settle_all(store, await take(store, 1, "first"))
    await promote_all(store)
    assert await store.retry([member]) == {member}
    behind = await run_behind(store, gate)
    await promote_all(store)
    assert set(await states(store, before)) == {READY}
    assert set(await states(store, behind)) == {BLOCKED}
    assert sorted(await drained(store)) == before
    again = await run_behind(store, gate)
    assert (await queue_stats(store)).blocked == 2 * RUN
    await settle_all(store, await take(store, 1, "first"))
    await promote_all(store)
    assert sorted(await drained(store)) == [*behind, *again]


async def test_a_delay_of_a_run_counts_from_the_release(store: Store, clock: FakeClock):
    gate = an_event()
    run = await run_behind(store, gate, due=timedelta(seconds=30))
    clock.advance(timedelta(minutes=5))
    await opened(store, gate)
    assert await counts(store) == {"scheduled": RUN}
    clock.advance(timedelta(seconds=30))
    await promote_all(store)
    assert await drained(store) == run


async def test_a_call_with_a_run_that_is_repeated_changes_nothing(store: Store):
    gate = an_event()
    made = Batch(new_batch(), [waiting(gate.id)] * RUN, (gate,))
    for _ in range(2):
        await store.enqueue(made)
        assert await counts(store) == {"blocked": RUN}
    await opened(store, gate)
    await store.enqueue(made)
    assert await counts(store) == {"ready": RUN}


# ── an operator operates ─────────────────────────────────────────────────────


async def test_jobs_of_a_run_are_found_listed_cancelled_and_deleted(store: Store):
    gate = an_event()
    run = await run_behind(store, gate)
    assert [job.id for job in await find_all(store, WAITING, limit=7)] == run[::-1]
    assert await waits_for(store, gate.id) == run
    assert await store.retry(run) == frozenset()
    gone = [run[0], run[5], run[6], run[-1]]
    assert await store.cancel(gone[:2], "no") == dict.fromkeys(gone[:2], CancelAnswer.CANCELLED)
    assert await store.cancel(gone[:2]) == dict.fromkeys(gone[:2], CancelAnswer.FINISHED)
    assert await store.delete(gone[2:], states={READY}) == frozenset()
    assert await store.delete(gone[2:]) == set(gone[2:])
    left = [id for id in run if id not in gone]
    job = await look(store, run[5])
    assert (job.state, job.note, job.waits) == (CANCELLED, "no", ())
    assert await states(store, gone[2:]) == [None, None]
    assert await counts(store) == {"blocked": len(left)}
    assert [job.id for job in await find_all(store, WAITING)] == left[::-1]
    assert await waits_for(store, gate.id) == left
    await opened(store, gate)
    assert await counts(store) == {"ready": len(left)}
    assert await store.cancel(left[3:5]) == dict.fromkeys(left[3:5], CancelAnswer.CANCELLED)
    assert await store.delete(left[:1]) == {left[0]}
    assert sorted(await drained(store)) == left[1:3] + left[5:]


async def test_a_run_that_is_cancelled_whole_waits_no_more(store: Store, clock: FakeClock):
    gate = an_event()
    run = await run_behind(store, gate)
    half = RUN // 2
    assert set((await store.cancel(run[half:])).values()) == {CancelAnswer.CANCELLED}
    assert set((await store.cancel(run[:half])).values()) == {CancelAnswer.CANCELLED}
    assert await waits_for(store, gate.id) == []
    assert await counts(store) == {}
    more = await run_behind(store, gate)
    assert await waits_for(store, gate.id) == more
    assert await store.delete(more) == set(more)
    await opened(store, gate)
    assert await claim(store) is None
    clock.advance(timedelta(days=2))
    while (await store.prune(Retention(done=timedelta(days=1)))).more:
        pass
    assert await store.gates([gate.id]) == [None]


async def test_jobs_of_a_run_that_are_retried_leave_it(store: Store):
    """One that was cancelled while it waited is ready though the others wait; one that was claimed comes back before later jobs."""
    gate = an_event()
    run = await run_behind(store, gate)
    await store.cancel(run[3:5])
    assert await store.retry(run[3:4]) == {run[3]}
    assert await states(store, run[2:6]) == [BLOCKED, READY, CANCELLED, BLOCKED]
    assert await drained(store) == [run[3]]
    await opened(store, gate)
    lease = await take(store, 4)
    assert ids(lease) == [run[0], run[1], run[2], run[5]]
    await store.settle(lease.token, [(0, DONE), (1, DEAD), (2, RELEASE), (3, Again(1, 0, timedelta(seconds=5)))])
    later = await put(store)
    assert await store.retry([run[0], run[1]]) == {run[0], run[1]}
    assert await store.retry([run[5]], afresh=False) == {run[5]}
    assert await counts(store) == {"ready": RUN - 1}
    order = await drained(store)
    assert sorted(order) == sorted([*run[:3], *run[5:], *later])
    assert max(order.index(run[at]) for at in (0, 1, 2, 5)) < order.index(later[0])


async def test_a_run_comes_back_from_a_lost_lease(store: Store, clock: FakeClock):
    gate = an_event()
    run = await run_behind(store, gate)
    await opened(store, gate)
    lease = await take(store, 10)
    await store.settle(lease.token, [(0, DONE), (1, DONE)])
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert [job.id for _, job in orphan.jobs] == run[2:10]
    assert {job.tenant for _, job in orphan.jobs} == {""}
    await store.settle(orphan.token, [(at, RELEASE) for at, _ in orphan.jobs])
    assert sorted(await drained(store)) == run[2:]


# ── what has become impossible ───────────────────────────────────────────────


async def test_a_run_that_can_never_run_is_cancelled_with_all_that_waits_for_its_jobs(store: Store):
    first, run = await run_behind_a_job(store, size=3 * RUN)
    id = new_batch()
    behind = [waiting(run[0])] + [waiting(run[-1])] * RUN
    await store.enqueue(Batch(id, behind))
    after = [job_id(id, ord) for ord in range(len(behind))]
    since = (await look(store, first)).enqueued_at
    await store.delete(run[10:20])
    await store.cancel([first])
    await promote_all(store)
    assert set(await states(store, [*run[:10], *run[20:], *after])) == {CANCELLED}
    assert (await look(store, run[0])).note == why_cancelled(Needs.DONE, first)
    assert (await look(store, after[-1])).note == why_cancelled(Needs.DONE, run[-1])
    assert await counts(store) == {}
    ended = [ending.id for ending in await store.ended(since, 1000)]
    assert sorted(ended) == sorted([first, *run[:10], *run[20:], *after])
    assert await store.retry([run[50]]) == {run[50]}
    assert await drained(store) == [run[50]]


async def test_a_run_whose_group_is_given_up_is_cancelled(store: Store, clock: FakeClock):
    gate = a_gate(sealed=False)
    run = await run_behind(store, gate)
    clock.advance(timedelta(days=20))
    await store.prune(Retention(dead=timedelta(days=10), done=LONG * 100))
    await promote_all(store)
    assert set(await states(store, run)) == {CANCELLED}
    assert (await look(store, run[9])).note == NEVER_SEALED
    assert await store.gates([gate.id]) == [None]


async def test_the_jobs_of_a_run_are_members(store: Store):
    """A run waits for one gate and counts on another."""
    id, gate, over = new_batch(), an_event(), a_gate()
    jobs = [*[waiting(gate.id)] * RUN, waiting(over.id, Needs.ENDED, queue="last")]
    edge = Edge(job_id(id, 0), job_id(id, RUN - 1), over.id)
    await store.enqueue(Batch(id, jobs, (gate, over), (edge,)))
    last = job_id(id, RUN)
    assert await state(store, last) is BLOCKED
    await store.cancel([job_id(id, 4)])
    await opened(store, gate)
    await drained(store)
    await promote_all(store)
    assert await state(store, last) is READY


# ── whose turn it is ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [1, 7, 30])
async def test_a_tenant_with_many_runs_has_one_turn(store: Store, limit: int):
    await put(store, 3 * RUN, tenant="quiet")
    await put(store, RUN, tenant="loud")
    for _ in range(4):
        gate = an_event()
        await run_behind(store, gate, tenant="loud")
        await opened(store, gate)
    got: Counter[str] = Counter()
    while got.total() < 210:
        got.update(job.tenant for job in (await take(store, min(limit, 210 - got.total()))).jobs)
    assert abs(got["loud"] - got["quiet"]) <= max(2, limit // 2)
    rest = Counter([(await look(store, id)).tenant for id in await drained(store)])
    assert got + rest == {"quiet": 3 * RUN, "loud": 5 * RUN}


async def test_priorities_hold_for_runs(store: Store):
    gate = an_event()
    low = await run_behind(store, gate, priority=-1)
    high = await run_behind(store, gate, priority=1)
    middle = await put(store, 3)
    assert ids(await claim(store, 2)) == middle[:2]
    await opened(store, gate)
    ahead = await store.ahead(middle[2])
    assert ahead is not None
    assert (ahead.lane, ahead.higher) == (0, RUN)
    assert await drained(store) == [*high, middle[2], *low]


async def test_limits_hold_for_runs(store: Store):
    await rule(store, "api", concurrency=3)
    gate = an_event()
    run = await run_behind(store, gate, limits=("api",), tenant="x")
    also = await put(store, 2, limits=("api",), tenant="x")
    await opened(store, gate)
    views = await store.lanes(["default"])
    assert [view.jobs for view in views] == [RUN + 2]
    done: list[JobId] = []
    while (lease := await claim(store, 10)) is not None:
        assert len(lease.jobs) <= 3
        assert await claim(store, 10) is None or len(lease.jobs) < 3
        done += ids(lease)
        await settle_all(store, lease)
    assert sorted(done) == sorted([*run, *also])


@pytest.mark.parametrize("kind", ["queue", "tenant"])
async def test_pauses_hold_for_runs(store: Store, kind: Any):
    gate = an_event()
    run = await run_behind(store, gate, tenant="x")
    await store.pause("default" if kind == "queue" else "x", kind=kind, by="ada")
    await opened(store, gate)
    assert await claim(store) is None
    assert await counts(store) == {"ready": RUN}
    ahead = await store.ahead(run[0])
    assert ahead is not None
    assert "ada" in {ahead.paused_by, ahead.tenant_paused_by}
    await store.resume("default" if kind == "queue" else "x", kind=kind)
    assert await drained(store) == run


async def test_claims_for_one_tenant_and_some_priorities_find_runs(store: Store):
    gate = an_event()
    run = await run_behind(store, gate, tenant="x")
    other = await run_behind(store, gate, tenant="y")
    own = await put(store, 2, tenant="x")
    await opened(store, gate)
    mine: list[JobId] = []
    while (lease := await claim(store, 33, tenant="x")) is not None:
        mine += ids(lease)
        await settle_all(store, lease)
    assert sorted(mine) == sorted([*run, *own])
    assert await drained(store) == other
