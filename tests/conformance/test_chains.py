"""Long chains, which a store may keep as one: each verb meets them before the wait of a job is over, and after it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

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
    key,
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
from conformance.test_gates import a_gate, promote_all, waiting
from headrace.model.gate import Edge, Needs, Wait, why_cancelled
from headrace.model.job import Batch, JobId, JobState, NewJob, UniqueLock, job_id, new_batch
from headrace.model.outcome import DONE, Again
from headrace.model.records import CancelAnswer, Filter, Retention
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

LENGTH = 40
"""Jobs of a chain: the Redis store keeps 16 and more as one."""
READY, BLOCKED, DONE_, CANCELLED = JobState.READY, JobState.BLOCKED, JobState.DONE, JobState.CANCELLED
WAITING = Filter(states=frozenset({BLOCKED}))


async def chain(store: Store, length: int = LENGTH, **options: Any) -> list[JobId]:
    """One call: jobs of which each waits for the one before it."""
    return await chain_of(store, *[new(**options)] * length)


async def chain_of(store: Store, *jobs: NewJob, other: tuple[NewJob, ...] = ()) -> list[JobId]:
    """The same of these jobs, and other ones behind them in the same call."""
    id = new_batch()
    links = [job if ord == 0 else _behind(job, job_id(id, ord - 1)) for ord, job in enumerate(jobs)]
    await store.enqueue(Batch(id, [*links, *other]))
    return [job_id(id, ord) for ord in range(len(jobs) + len(other))]


def _behind(job: NewJob, id: JobId) -> NewJob:
    return waiting(
        id,
        task=job.task,
        payload=job.payload,
        queue=job.lane.queue,
        priority=job.lane.priority,
        tenant=job.lane.tenant,
        limits=job.lane.limits,
        due=job.due,
        key=job.key,
        unique=job.unique,
    )


async def run(store: Store, count: int) -> list[JobId]:
    """Claim and settle so many jobs, one after the other."""
    done: list[JobId] = []
    for _ in range(count):
        lease = await take(store, 1)
        done += ids(lease)
        await settle_all(store, lease)
        await promote_all(store)
    return done


async def drained(store: Store, limit: int = 30) -> list[JobId]:
    done: list[JobId] = []
    while (lease := await claim(store, limit)) is not None:
        done += ids(lease)
        await settle_all(store, lease)
        await promote_all(store)
    return done


async def waits_for(store: Store, id: JobId) -> list[JobId]:
    return sorted(JobId(id) for id in (await store.links(id)).blocked)


# ── one after the other ──────────────────────────────────────────────────────


async def test_the_jobs_of_a_chain_go_one_after_the_other(store: Store):
    links = await chain(store, tenant="x")
    assert await counts(store) == {"ready": 1, "blocked": LENGTH - 1}
    job = await look(store, links[7])
    assert (job.state, job.waits, job.tenant, job.attempt) == (BLOCKED, (Wait(links[6]),), "x", 0)
    assert await store.ahead(links[7]) is None
    assert await waits_for(store, links[6]) == [links[7]]
    assert await run(store, 7) == links[:7]
    assert await counts(store) == {"ready": 1, "blocked": LENGTH - 8}
    assert await states(store, links[5:9]) == [DONE_, DONE_, READY, BLOCKED]
    assert await waits_for(store, links[6]) == []
    job = await look(store, links[7])
    assert (job.state, job.waits, job.tenant) == (READY, (), "x")
    [lane] = await store.lanes(["default"])
    assert (lane.jobs, lane.tenant) == (1, "x")
    ahead = await store.ahead(links[7])
    assert ahead is not None
    assert ahead.lane == 0
    assert await drained(store) == links[7:]
    assert await counts(store) == {}
    assert set(await states(store, links)) == {DONE_}


async def test_many_chains_go_side_by_side(store: Store):
    chains = [await chain(store) for _ in range(7)]
    for step in range(LENGTH):
        lease = await take(store, 30)
        assert sorted(ids(lease)) == sorted(links[step] for links in chains)
        assert await states(store, ids(lease)) == [JobState.RUNNING] * 7
        await settle_all(store, lease)
        await promote_all(store)
    assert await claim(store) is None
    assert await counts(store) == {}


async def test_blocked_jobs_of_chains_are_found(store: Store):
    first, second = await chain(store), await chain(store)
    await run(store, 2)
    left = sorted([*first, *second])
    left = [id for id in left if await state(store, id) is BLOCKED]
    assert len(left) == 2 * LENGTH - 4
    assert [job.id for job in await find_all(store, WAITING)] == left[::-1]
    assert [job.id for job in await find_all(store, WAITING, limit=7)] == left[::-1]


async def test_the_oldest_ready_job_may_be_the_one_that_became_ready_last(store: Store, clock: FakeClock):
    old, then = await chain(store, tenant="x"), clock.now()
    clock.advance(timedelta(minutes=5))
    young = await chain(store, tenant="x")
    lease = await take(store, 2)
    assert ids(lease) == [old[0], young[0]]
    await store.settle(lease.token, [(1, DONE)])
    await store.settle(lease.token, [(0, DONE)])
    await promote_all(store)
    assert (await queue_stats(store)).oldest_ready == timedelta(minutes=5)
    [lane] = await store.lanes(["default"])
    assert (lane.jobs, lane.oldest) == (2, then)


async def test_a_call_with_a_chain_that_is_repeated_changes_nothing(store: Store):
    id = new_batch()
    made = Batch(id, [new(), *(waiting(job_id(id, ord)) for ord in range(LENGTH - 1))])
    for _ in range(2):
        await store.enqueue(made)
        assert await counts(store) == {"ready": 1, "blocked": LENGTH - 1}
    await run(store, 3)
    await store.enqueue(made)
    assert await counts(store) == {"ready": 1, "blocked": LENGTH - 4}


async def test_a_chain_behind_a_job_of_another_call_queue_or_gate(store: Store):
    [first] = await put(store, queue="first")
    id, gate = new_batch(), a_gate()
    jobs = [waiting(first), *(waiting(job_id(id, ord)) for ord in range(LENGTH - 1))]
    await store.enqueue(Batch(id, jobs, (gate,), (Edge(job_id(id, LENGTH - 1), job_id(id, LENGTH - 1), gate.id),)))
    [last] = await put_behind(store, gate.id)
    other = await chain_of(store, new(queue="first"), *[new()] * LENGTH)
    assert await counts(store) == {"blocked": 2 * LENGTH + 1}
    await settle_all(store, await take(store, 2, "first"))
    await promote_all(store)
    assert await state(store, last) is BLOCKED
    done = await drained(store)
    assert sorted(done) == sorted([*(job_id(id, ord) for ord in range(LENGTH)), *other[1:], last])
    assert done[-1] == last


async def put_behind(store: Store, id: Any, needs: Needs = Needs.DONE) -> list[JobId]:
    batch = new_batch()
    await store.enqueue(Batch(batch, [waiting(id, needs)]))
    return [job_id(batch, 0)]


async def test_the_jobs_of_a_chain_may_have_lanes_delays_keys_and_locks_of_their_own(store: Store, clock: FakeClock):
    [known] = await put(store, key=key("k"), queue="keys")
    plain, lock = new(), UniqueLock(name="u", states=frozenset({READY, BLOCKED}))
    jobs = [plain] * 60
    jobs[20] = new(queue="other")
    jobs[30] = new(due=timedelta(seconds=5))
    jobs[40] = new(unique=lock)
    jobs[59] = new(key=key("k"), queue="keys")
    links = await chain_of(store, *jobs)
    assert await run(store, 20) == links[:20]
    await settle_all(store, await take(store, 1, "other"))
    await promote_all(store)
    assert await run(store, 9) == links[21:30]
    assert await claim(store) is None
    clock.advance(timedelta(seconds=5))
    await promote_all(store)
    assert await run(store, 29) == links[30:59]
    assert await claim(store) is None
    assert await state(store, known) is READY


async def test_a_job_behind_one_that_is_not_stored_waits_for_the_one_that_stands_for_it(store: Store):
    [known] = await put(store, key=key("k"), queue="keys")
    links = await chain_of(store, *[new()] * 20, new(key=key("k"), queue="keys"), *[new()] * 20)
    await settle_all(store, await take(store, 1, "keys"))
    await promote_all(store)
    assert sorted(await drained(store)) == sorted([*links[:20], *links[21:]])
    assert await state(store, known) is DONE_


# ── other ends ───────────────────────────────────────────────────────────────


async def test_a_dead_job_holds_the_rest_and_its_replay_lets_it_go_on(store: Store):
    links = await chain(store)
    await run(store, 3)
    await settle_all(store, await take(store, 1), DEAD)
    await promote_all(store)
    assert await claim(store) is None
    assert await counts(store) == {"blocked": LENGTH - 4, "dead": 1}
    assert await store.retry([links[3]]) == {links[3]}
    assert await drained(store) == links[3:]


async def test_a_dead_job_that_is_discarded_cancels_the_rest(store: Store):
    links = await chain(store)
    await run(store, 3)
    await settle_all(store, await take(store, 1), DEAD)
    assert await store.cancel([links[20]], "no") == {links[20]: CancelAnswer.CANCELLED}
    await promote_all(store)
    assert await store.delete([links[3]]) == {links[3]}
    await promote_all(store)
    assert set(await states(store, links[4:])) == {CANCELLED}
    assert (await look(store, links[4])).note == why_cancelled(Needs.DONE, links[3])
    assert (await look(store, links[20])).note == "no"
    assert (await look(store, links[21])).note == why_cancelled(Needs.DONE, links[20])
    assert await counts(store) == {}


async def test_a_job_that_is_done_once_more_lets_nothing_go(store: Store):
    links = await chain(store)
    await run(store, 3)
    assert await store.retry([links[1]]) == {links[1]}
    assert sorted(await run(store, 2)) == sorted([links[1], links[3]])
    assert await counts(store) == {"ready": 1, "blocked": LENGTH - 5}
    assert await drained(store) == links[4:]


async def test_jobs_of_a_chain_come_back_and_wait_for_something_else(store: Store, clock: FakeClock):
    links = await chain(store)
    await run(store, 3)
    gate = a_gate(sealed=True, signalled=True)
    for end in (
        RELEASE,
        Again(1, 0, timedelta(seconds=5)),
        Again(0, 0, gates=(gate,), waits=(Wait(gate.id, Needs.ENDED),)),
    ):
        await settle_all(store, await take(store, 1), end)
        clock.advance(timedelta(seconds=5))
        await promote_all(store)
    assert await state(store, links[3]) is BLOCKED
    assert (await look(store, links[3])).waits == (Wait(gate.id, Needs.ENDED),)
    assert await waits_for(store, links[2]) == []
    assert await store.signal(gate, b"", LONG)
    await promote_all(store)
    lease = await take(store, 1)
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert [job.id for _, job in orphan.jobs] == ids(lease) == [links[3]]
    await store.settle(orphan.token, [(0, RELEASE)])
    assert await drained(store) == links[3:]


# ── an operator operates ─────────────────────────────────────────────────────


async def test_a_job_that_is_cancelled_in_the_middle_cancels_what_is_behind_it(store: Store):
    links = await chain(store)
    assert await store.retry(links[1:]) == frozenset()
    assert await store.cancel([links[20]], "no") == {links[20]: CancelAnswer.CANCELLED}
    await promote_all(store)
    assert await store.cancel([links[20]]) == {links[20]: CancelAnswer.FINISHED}
    assert await states(store, links[18:22]) == [BLOCKED, BLOCKED, CANCELLED, CANCELLED]
    assert (await look(store, links[20])).note == "no"
    assert (await look(store, links[-1])).note == why_cancelled(Needs.DONE, links[-2])
    assert await counts(store) == {"ready": 1, "blocked": 19}
    assert await waits_for(store, links[19]) == []
    assert [job.id for job in await find_all(store, WAITING)] == links[19:0:-1]
    assert await drained(store) == links[:20]
    assert await store.retry([links[30]]) == {links[30]}
    assert await drained(store) == [links[30]]
    assert await counts(store) == {}


async def test_a_running_or_ready_job_that_is_cancelled_cancels_the_rest(store: Store):
    running, ready = await chain(store, queue="one"), await chain(store, queue="two")
    for queue in ("one", "two"):
        await settle_all(store, await take(store, 1, queue))
    await promote_all(store)
    lease = await take(store, 1, "one")
    assert set((await store.cancel([running[1], ready[1]])).values()) == {CancelAnswer.ASKED, CancelAnswer.CANCELLED}
    await settle_all(store, lease, RELEASE)
    await promote_all(store)
    assert set(await states(store, running[1:])) == set(await states(store, ready[1:])) == {CANCELLED}
    assert await counts(store, "one") == await counts(store, "two") == {}


async def test_blocked_and_ready_jobs_that_are_deleted(store: Store):
    links = await chain(store)
    await run(store, 2)
    assert await store.delete([links[10]], states={READY}) == frozenset()
    assert await store.delete([links[10], links[-1]]) == {links[10], links[-1]}
    await promote_all(store)
    assert await states(store, links[9:12]) == [BLOCKED, None, CANCELLED]
    assert (await look(store, links[11])).note == why_cancelled(Needs.DONE, links[10])
    assert await store.delete([links[2]]) == {links[2]}
    await promote_all(store)
    assert set(await states(store, links[3:10])) == {CANCELLED}
    assert await counts(store) == {}
    assert await claim(store) is None


async def test_a_chain_that_is_cancelled_from_its_end_to_its_head(store: Store, clock: FakeClock):
    links = await chain(store)
    for id in links[::-1]:
        assert await store.cancel([id]) == {id: CancelAnswer.CANCELLED}
        await promote_all(store)
    assert await counts(store) == {}
    clock.advance(timedelta(days=2))
    while (await store.prune(Retention(done=timedelta(days=1)))).more:
        pass
    assert set(await states(store, links)) == {None}


async def test_what_follows_a_job_of_a_chain_besides_the_next_one(store: Store):
    links = await chain(store)
    [after] = await put_behind(store, links[10])
    [failed] = await put_behind(store, links[10], Needs.FAILED)
    gate = a_gate()
    await store.enqueue(Batch(new_batch(), [], (gate,), (Edge(links[10], links[10], gate.id),)))
    assert await waits_for(store, links[10]) == sorted([links[11], after, failed])
    await run(store, 10)
    assert await run(store, 1) == [links[10]]
    assert await states(store, [links[11], after, failed]) == [READY, READY, CANCELLED]
    [found] = await store.gates([gate.id])
    assert found is not None
    assert (found.counts.size, found.counts.done) == (1, 1)
    assert sorted(await drained(store)) == sorted([*links[11:], after])


# ── whose turn it is ─────────────────────────────────────────────────────────


async def test_limits_pauses_and_priorities_hold_for_the_jobs_of_chains(store: Store):
    await rule(store, "shop", concurrency=2)
    limited = [await chain(store, limits=("shop:1",), tenant="x") for _ in range(4)]
    await run(store, 3)
    lease = await take(store, 30)
    assert len(lease.jobs) == 2
    [high] = await put(store, priority=5)
    assert ids(await take(store, 1)) == [high]
    await settle_all(store, lease)
    await promote_all(store)
    await store.pause("x", kind="tenant")
    assert await claim(store) is None
    await store.resume("x", kind="tenant")
    done = await drained(store)
    assert len(done) == 4 * LENGTH - 5
    for links in limited:
        assert [id for id in done if id in links] == [id for id in links if id in done]


async def test_a_tenant_of_many_chains_has_one_turn(store: Store):
    for _ in range(20):
        await chain(store, tenant="big", length=20)
    await settle_all(store, await take(store, 15))
    await promote_all(store)
    await put(store, 20, tenant="small")
    lease = await take(store, 20)
    assert sum(job.tenant == "small" for job in lease.jobs) == 10
