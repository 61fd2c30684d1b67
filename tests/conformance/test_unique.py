"""Unique locks: held by a job while it is in one of the given states, freed by every way out."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.kit import (
    DEAD,
    RELEASE,
    batch,
    claim,
    counts,
    ids,
    key,
    look,
    new,
    put,
    put_jobs,
    run_one,
    settle_all,
    state,
    take,
)
from headrace.model.job import JobId, JobState, NewJob, UniqueLock, job_id
from headrace.model.outcome import DONE, Finish
from headrace.model.records import Enqueued, Retention
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

S = timedelta(seconds=1)
LIVE = frozenset({JobState.SCHEDULED, JobState.READY, JobState.RUNNING})
WAITING = frozenset({JobState.SCHEDULED, JobState.READY})


def lock(
    name: str = "u", *, states: frozenset[JobState] = LIVE, within: timedelta | None = None, replace: bool = False
) -> UniqueLock:
    return UniqueLock(name, states, within, replace)


async def offer(store: Store, job: NewJob) -> JobId:
    """The job that stands for this one after the call."""
    made = batch(job)
    return (await store.enqueue(made)).existing.get(0, job_id(made.id, 0))


async def test_a_second_one_meets_the_first(store: Store):
    [first] = await put(store, unique=lock())
    assert await offer(store, new(payload=b"other", unique=lock())) == first
    assert await counts(store) == {"ready": 1}
    await take(store)
    assert await offer(store, new(unique=lock())) == first


async def test_other_names_other_tasks_and_none_at_all_are_free(store: Store):
    await put(store, unique=lock())
    await put(store, unique=lock("v"))
    await put(store, task="other", unique=lock())
    await put(store)
    assert await counts(store) == {"ready": 4}


@pytest.mark.parametrize(
    "way", ["done", "dead", "cancelled", "cancelled waiting", "cancelled running", "deleted", "pruned"]
)
async def test_every_way_out_frees_the_lock(store: Store, clock: FakeClock, way: str):
    [first] = await put(store, unique=lock())
    if way == "cancelled waiting":
        await store.cancel([first])
    elif way == "deleted":
        await store.delete([first])
    elif way == "cancelled running":
        lease = await take(store)
        await store.cancel([first])
        await settle_all(store, lease, RELEASE)
    else:
        await run_one(store, {"dead": DEAD, "cancelled": Finish(JobState.CANCELLED)}.get(way, DONE))
    if way == "pruned":
        clock.advance(timedelta(days=40))
        while (await store.prune(Retention(done=S, dead=S))).more:
            pass
    [second] = await put(store, unique=lock())
    assert await state(store, second) is JobState.READY
    assert await offer(store, new(unique=lock())) == second


async def test_a_job_that_goes_back_keeps_its_lock(store: Store, clock: FakeClock):
    [first] = await put(store, unique=lock())
    await run_one(store, RELEASE)
    assert await offer(store, new(unique=lock())) == first
    clock.advance(timedelta(hours=2))
    assert await offer(store, new(unique=lock())) == first


async def test_a_scheduled_one_holds_it_too(store: Store):
    [first] = await put(store, unique=lock(), due=S)
    assert await offer(store, new(unique=lock())) == first


async def test_only_the_states_asked_for_count(store: Store):
    [first] = await put(store, unique=lock(states=WAITING))
    await take(store)
    second = await offer(store, new(unique=lock(states=WAITING)))
    assert second != first
    # The holder is the last one that took it.
    assert await offer(store, new(unique=lock())) == second


async def test_done_may_hold_it_for_a_while(store: Store, clock: FakeClock):
    long = lock(states=LIVE | {JobState.DONE}, within=10 * S)
    [first] = await put(store, unique=long)
    await run_one(store)
    assert await offer(store, new(unique=long)) == first
    clock.advance(10 * S - timedelta(microseconds=1))
    assert await offer(store, new(unique=long)) == first
    clock.advance(timedelta(microseconds=1))
    assert await offer(store, new(unique=long)) != first


async def test_within_ends_the_lock_of_a_waiting_one(store: Store, clock: FakeClock):
    [first] = await put(store, unique=lock(within=10 * S))
    clock.advance(10 * S)
    second = await offer(store, new(unique=lock(within=10 * S)))
    assert second != first
    assert await counts(store) == {"ready": 2}


# ── replace ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("due", [None, S])
async def test_replace_cancels_who_waits(store: Store, due: timedelta | None):
    [first] = await put(store, unique=lock(), due=due)
    second = await offer(store, new(payload=b"newer", unique=lock(replace=True)))
    old = await look(store, first)
    assert (old.state, old.note) == (JobState.CANCELLED, "replaced")
    assert await counts(store) == {"ready": 1}
    lease = await take(store)
    assert (ids(lease), lease.jobs[0].payload) == ([second], b"newer")
    assert await offer(store, new(unique=lock())) == second


async def test_replace_leaves_who_runs_alone(store: Store):
    [first] = await put(store, unique=lock())
    lease = await take(store)
    second = await offer(store, new(unique=lock(replace=True)))
    assert second != first
    assert (await look(store, first)).cancelling is False
    third = await offer(store, new(unique=lock(replace=True)))
    assert await state(store, second) is JobState.CANCELLED
    await settle_all(store, lease)
    assert await offer(store, new(unique=lock())) == third


# ── batches, keys, repeats ───────────────────────────────────────────────────


async def test_inside_one_batch_the_first_counts(store: Store):
    made = batch(*[new(payload=bytes([n]), unique=lock()) for n in range(3)], new(unique=lock("v")), new())
    first = job_id(made.id, 0)
    assert await store.enqueue(made) == Enqueued({1: first, 2: first})
    assert await counts(store) == {"ready": 3}
    assert [job.payload for job in (await take(store)).jobs] == [b"\0", b"{}", b"{}"]


async def test_inside_one_batch_the_last_counts_if_it_replaces(store: Store):
    [old] = await put(store, unique=lock())
    made = batch(*[new(payload=bytes([n]), unique=lock(replace=True)) for n in range(3)])
    last = job_id(made.id, 2)
    assert await store.enqueue(made) == Enqueued({0: last, 1: last})
    assert await state(store, old) is JobState.CANCELLED
    assert ids(await take(store)) == [last]


async def test_a_batch_that_meets_a_holder_all_over(store: Store):
    [first] = await put(store, unique=lock())
    made = batch(new(unique=lock()), new(unique=lock()), new())
    assert (await store.enqueue(made)).existing == {0: first, 1: first}
    assert await counts(store) == {"ready": 2}


async def test_a_repeated_call_answers_as_before(store: Store):
    [first] = await put(store, unique=lock())
    made = batch(new(unique=lock()), new(unique=lock("v")), new())
    answer = await store.enqueue(made)
    assert answer.existing == {0: first}
    assert await store.enqueue(made) == answer
    assert await counts(store) == {"ready": 3}
    replacing = batch(new(unique=lock(replace=True)))
    assert (await store.enqueue(replacing)).existing == {}
    assert (await store.enqueue(replacing)).existing == {}
    assert await state(store, job_id(replacing.id, 0)) is JobState.READY


async def test_a_repeated_call_answers_as_before_when_another_job_holds_the_lock(store: Store):
    [first] = await put(store, unique=lock())
    made = batch(new(unique=lock()), new())
    answer = await store.enqueue(made)
    assert answer.existing == {0: first}
    await store.cancel([first])
    [later] = await put(store, unique=lock())
    assert later != first
    assert await store.enqueue(made) == answer
    await store.delete([later])
    assert await store.enqueue(made) == answer


async def test_keys_are_looked_at_first(store: Store):
    [first] = await put(store, key=key("k"), unique=lock())
    await run_one(store)
    assert await offer(store, new(key=key("k"), unique=lock())) == first
    [second] = await put(store, unique=lock())
    assert await offer(store, new(key=key("k2"), unique=lock())) == second


async def test_a_key_whose_job_met_a_lock_is_not_remembered(store: Store):
    [holder] = await put(store, unique=lock())
    assert await offer(store, new(key=key("k"), unique=lock())) == holder
    await run_one(store)
    # The key made no job, so it stands for none: the next one with it is stored, also with other arguments.
    made = await offer(store, new(payload=b"other", key=key("k", digest=b"other"), unique=lock()))
    assert made != holder
    assert await state(store, made) is JobState.READY
    assert await offer(store, new(key=key("k", digest=b"other"), unique=lock("v"))) == made


async def test_keys_and_locks_inside_one_batch(store: Store):
    [holder] = await put(store, unique=lock())
    made = batch(
        new(key=key("k"), unique=lock()),
        new(key=key("k")),
        new(key=key("l"), unique=lock("v")),
        new(key=key("m"), unique=lock("v")),
        new(key=key("m")),
    )
    second = job_id(made.id, 2)
    answer = await store.enqueue(made)
    # A job that shares its key with an earlier job of the batch gets the holder of that job's lock.
    assert answer.existing == {0: holder, 1: holder, 3: second, 4: second}
    assert await store.enqueue(made) == answer
    assert await counts(store) == {"ready": 2}
    for name in "km":
        [fresh] = await put(store, key=key(name))
        assert await state(store, fresh) is JobState.READY
    assert await offer(store, new(key=key("l"))) == second


async def test_one_wins_of_many_at_once(store: Store):
    made = [batch(new(unique=lock())) for _ in range(20)]
    answers = await asyncio.gather(*[store.enqueue(one) for one in made])
    winners = [one for one, answer in zip(made, answers, strict=True) if not answer.existing]
    assert len(winners) == 1
    won = job_id(winners[0].id, 0)
    assert {id for answer in answers for id in answer.existing.values()} == {won}
    assert ids(await claim(store)) == [won]


async def test_many_names_in_one_batch(store: Store):
    wanted = [new(unique=lock(f"u{n}")) for n in range(200)]
    await put_jobs(store, *wanted)
    made = batch(*wanted)
    assert len((await store.enqueue(made)).existing) == 200
    assert await counts(store) == {"ready": 200}
