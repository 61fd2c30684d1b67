"""Two at once on the same jobs: one wins, the other is told, nothing is lost and nothing happens twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from conformance.kit import (
    RELEASE,
    TTL,
    claim,
    counts,
    failure,
    find_all,
    ids,
    key,
    look,
    new,
    put,
    put_jobs,
    queue_stats,
    states,
    take,
)
from headrace.errors import IdempotencyConflict
from headrace.model.job import Batch, JobId, JobState, job_id, new_batch
from headrace.model.lease import Lease, Orphan, new_token, new_worker_id
from headrace.model.outcome import DONE, Finish
from headrace.model.records import CancelAnswer, Retention
from headrace.store.contract import Store
from races.kit import in_threads, side_by_side, together

ROUNDS = 15


async def test_settle_against_cancel(store_url: str):
    async with side_by_side(store_url, 2) as (worker, operator):
        for _ in range(ROUNDS):
            made = await put(worker, 6)
            lease = await take(worker)
            ends = [(at, DONE if at % 2 else RELEASE) for at in range(6)]
            refused, answers = await asyncio.gather(worker.settle(lease.token, ends), operator.cancel(made, "r"))
            assert refused == frozenset()
            for at, (id, state) in enumerate(zip(made, await states(worker, made), strict=True)):
                if at % 2:
                    assert state is JobState.DONE
                    assert answers[id] in {CancelAnswer.ASKED, CancelAnswer.FINISHED}
                else:
                    # Asked before the release, or cancelled after it: in both orders it never runs again.
                    assert state is JobState.CANCELLED
                    assert answers[id] in {CancelAnswer.ASKED, CancelAnswer.CANCELLED}
            assert await claim(worker) is None
        assert await counts(worker) == {}


async def test_claim_against_cancel(store_url: str):
    async with side_by_side(store_url, 2) as (worker, operator):
        for _ in range(ROUNDS):
            made = await put(worker, 8)
            lease, answers = await asyncio.gather(claim(worker, 5), operator.cancel(made[2:], "r"))
            running = set(ids(lease))
            for id in made[2:]:
                assert answers[id] is (CancelAnswer.ASKED if id in running else CancelAnswer.CANCELLED)
            if lease:
                await worker.settle(lease.token, [(at, RELEASE) for at in range(len(lease.jobs))])
            final = await states(worker, made)
            assert final == [JobState.READY, JobState.READY, *[JobState.CANCELLED] * 6]
            await worker.delete(made)


async def test_settle_against_reap(store_url: str):
    """The zombie: its worker was given up, its leases expired, and now it settles while the janitor reaps."""
    async with side_by_side(store_url, 2) as (zombie, janitor):
        for _ in range(ROUNDS):
            made = await put(zombie, 5)
            me = new_worker_id()
            lease = await take(zombie, worker=me)
            await janitor.abandon(me, "thought to be dead")
            ends = [(at, Finish(JobState.DONE, result=b"zombie")) for at in range(5)]
            refused, orphans = await asyncio.gather(
                zombie.settle(lease.token, ends), janitor.reap(new_worker_id(), TTL, 10)
            )
            taken_over = {at for orphan in orphans for at, _ in orphan.jobs}
            assert refused == taken_over
            for orphan in orphans:
                mine = [(at, Finish(JobState.DONE, result=b"janitor")) for at, _ in orphan.jobs]
                assert await janitor.settle(orphan.token, mine) == frozenset()
            for at, id in enumerate(made):
                job = await look(zombie, id)
                assert (job.state, job.result) == (JobState.DONE, b"janitor" if at in taken_over else b"zombie")
        assert (await queue_stats(zombie)).done_total == 5 * ROUNDS


async def test_heartbeat_against_reap(store_url: str):
    async with side_by_side(store_url, 2) as (worker, janitor):
        for _ in range(ROUNDS):
            await put(worker, 2)
            me = new_worker_id()
            lease = await take(worker, worker=me)
            await janitor.abandon(me, "thought to be dead")
            pulse, orphans = await asyncio.gather(
                worker.heartbeat([lease.token], TTL), janitor.reap(new_worker_id(), TTL, 10)
            )
            # A heartbeat that meets the janitor at work may not know yet; the next one does.
            assert len(pulse.lost) <= len(orphans)
            assert len((await worker.heartbeat([lease.token], TTL)).lost) == len(orphans)
            token = orphans[0].token if orphans else lease.token
            assert await worker.settle(token, [(0, DONE), (1, DONE)]) == frozenset()


async def test_settle_against_detach(store_url: str):
    async with side_by_side(store_url, 2) as (one, other):
        for _ in range(ROUNDS):
            made = await put(one, 3)
            lease, fresh = await take(one), new_token()
            refused, detached = await asyncio.gather(
                one.settle(lease.token, [(1, DONE)]), other.detach(lease.token, 1, fresh)
            )
            assert refused == frozenset()
            assert await states(one, made[1:2]) == [JobState.RUNNING if detached else JobState.DONE]
            assert await one.settle(fresh, [(0, DONE)]) == (frozenset() if detached else {0})
            await one.settle(lease.token, [(0, DONE), (2, DONE)])
            assert await states(one, made) == [JobState.DONE] * 3


async def test_parts_of_one_lease_settled_at_once(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        for _ in range(ROUNDS):
            made = await put(stores[0], 20)
            lease = await take(stores[0])
            parts = [[(at, DONE if at % 3 else RELEASE) for at in range(n, 20, 4)] for n in range(4)]
            answers = await together(
                *[store.settle(lease.token, part) for store, part in zip(stores, parts, strict=True)]
            )
            assert answers == [frozenset()] * 4
            expected = [JobState.DONE if at % 3 else JobState.READY for at in range(20)]
            assert await states(stores[0], made) == expected
            assert (await stores[0].heartbeat([lease.token], TTL)).lost == {lease.token}
            await stores[0].delete(made)


async def test_the_same_settle_twice_at_once_counts_once(store_url: str):
    async with side_by_side(store_url, 2) as stores:
        for _ in range(ROUNDS):
            await put(stores[0], 4)
            lease = await take(stores[0])
            ends = [(at, Finish(JobState.DEAD, failure=failure(), failures=1)) for at in range(4)]
            answers = await together(*[store.settle(lease.token, ends) for store in stores])
            # The later one meets the lease as it was or finds it ended.
            assert sorted(map(len, answers)) in ([0, 0], [0, 4])
        stats = await queue_stats(stores[0])
        assert (stats.failed_total, stats.dead) == (4 * ROUNDS, 4 * ROUNDS)
        assert {len(job.history) for job in await stores[0].get([j.id for j in await find_all(stores[0])]) if job} == {
            1
        }


# ── janitors ─────────────────────────────────────────────────────────────────


async def reap_all(store: Store) -> list[Orphan]:
    found: list[Orphan] = []
    while orphans := await store.reap(new_worker_id(), TTL, 2):
        found += orphans
    return found


async def test_two_janitors_reap_each_lease_once(store_url: str):
    async with side_by_side(store_url, 3) as stores:
        dead = new_worker_id()
        made = await put(stores[0], 30)
        leases: list[Lease] = [await take(stores[0], 3, worker=dead) for _ in range(10)]
        assert await stores[0].abandon(dead, "killed") == 10
        parts = await together(*[reap_all(store) for store in stores])
        rest = await reap_all(stores[0])
        orphans = [orphan for part in [*parts, rest] for orphan in part]
        assert len(orphans) == 10
        assert Counter(job.id for orphan in orphans for _, job in orphan.jobs) == Counter(made)
        assert len({orphan.token for orphan in orphans} | {lease.token for lease in leases}) == 20
        for orphan in orphans:
            await stores[1].settle(orphan.token, [(at, RELEASE) for at, _ in orphan.jobs])
        assert ids(await claim(stores[2])) == made


async def test_two_janitors_promote_each_job_once(store_url: str):
    async with side_by_side(store_url, 3) as stores:
        # Scheduled for a moment that is over when the first worker looks.
        soon = timedelta(microseconds=1)
        made = [id for n in range(30) for id in await put(stores[0], n % 3 + 1, due=soon)]

        async def promote_all(store: Store) -> int:
            moved = 0
            while (answer := await store.promote(7)).moved or answer.next_due is not None:
                moved += answer.moved
            return moved

        moved = await together(*[promote_all(store) for store in stores])
        assert sum(moved) == len(made)
        assert await counts(stores[0]) == {"ready": len(made)}
        taken = ids(await claim(stores[0], 1000))
        assert taken == made


async def test_two_janitors_prune_each_job_once(store_url: str):
    async with side_by_side(store_url, 3) as stores:
        await put(stores[0], 100)
        [waiting] = await put(stores[0], queue="other")
        lease = await take(stores[0])
        await stores[0].settle(lease.token, [(at, DONE) for at in range(100)])
        nothing = Retention(done=timedelta(0), dead=timedelta(0))

        async def prune(store: Store) -> int:
            answer = await store.prune(nothing, 30)
            gone = answer.jobs
            while answer.more:
                answer = await store.prune(nothing, 30)
                gone += answer.jobs
            return gone

        gone = await together(*[prune(store) for store in stores])
        left = len(await find_all(stores[0])) - 1
        assert sum(gone) + left == 100
        assert await states(stores[0], [waiting]) == [JobState.READY]


# ── the operator ─────────────────────────────────────────────────────────────


async def test_pause_against_claim(store_url: str):
    """After pause has answered, no claim begins; those under way are complete or empty."""
    async with side_by_side(store_url, 4) as stores:
        made = await put(stores[0], 300)
        busy, paused = asyncio.Event(), asyncio.Event()
        taken: list[JobId] = []

        async def work(store: Store) -> int:
            late = 0
            while True:
                was_paused = paused.is_set()
                lease = await claim(store, 1)
                taken.extend(ids(lease))
                if len(taken) >= 20:
                    busy.set()
                late += was_paused and lease is not None
                if was_paused:
                    return late

        async def stop() -> int:
            await busy.wait()
            await stores[0].pause("default", by="ada")
            paused.set()
            return 0

        late = await together(stop(), *[work(store) for store in stores[1:]])
        assert sum(late) == 0
        assert await claim(stores[1]) is None
        assert (await queue_stats(stores[0])).running == len(taken)
        await stores[0].resume("default")
        assert sorted([*taken, *ids(await claim(stores[1], 1000))]) == made


async def test_retry_against_retry(store_url: str):
    async with side_by_side(store_url, 3) as stores:
        made = await put(stores[0], 20)
        for attempt in range(1, 6):
            lease = await take(stores[0])
            await stores[0].settle(lease.token, [(at, Finish(JobState.DEAD)) for at in range(20)])
            answers = await together(*[store.retry(made) for store in stores])
            assert Counter(id for answer in answers for id in answer) == Counter(made)
            assert await counts(stores[0]) == {"ready": 20}
            assert {job.attempt for job in await find_all(stores[0])} == {attempt}


async def test_delete_against_claim(store_url: str):
    async with side_by_side(store_url, 2) as (worker, operator):
        for _ in range(ROUNDS):
            made = await put(worker, 10)
            lease, deleted = await asyncio.gather(claim(worker, 6), operator.delete(made[3:]))
            running = ids(lease)
            assert not deleted & set(running)
            assert [job.id for job in reversed(await find_all(worker))] == [id for id in made if id not in deleted]
            if lease:
                await worker.settle(lease.token, [(at, DONE) for at in range(len(running))])
            await worker.delete(made)
            assert await find_all(worker) == []


async def test_retry_against_delete(store_url: str):
    async with side_by_side(store_url, 2) as (one, other):
        for _ in range(ROUNDS):
            made = await put(one, 6)
            await one.cancel(made)
            moved, deleted = await asyncio.gather(one.retry(made), other.delete(made))
            # What was deleted is gone, whether it was retried first or not; the rest is ready.
            assert moved | deleted == set(made)
            assert [job.id for job in reversed(await find_all(one))] == [id for id in made if id not in deleted]
            assert await counts(one) == ({"ready": 6 - len(deleted)} if len(deleted) < 6 else {})
            await one.delete(made)


async def test_retry_against_a_guarded_delete(store_url: str):
    async with side_by_side(store_url, 2) as (one, other):
        for _ in range(ROUNDS):
            made = await put(one, 6)
            await one.cancel(made)
            moved, deleted = await asyncio.gather(one.retry(made), other.delete(made, states={JobState.CANCELLED}))
            # Each job went one way: a job that a caller was told is ready was not lost.
            assert moved == set(made) - deleted
            assert [job.id for job in reversed(await find_all(one))] == [id for id in made if id in moved]
            assert await counts(one) == ({"ready": len(moved)} if moved else {})
            await one.delete(made)


# ── enqueue ──────────────────────────────────────────────────────────────────


async def test_the_same_batch_sent_twice_at_once_is_one_batch(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        for _ in range(ROUNDS):
            batch = Batch(new_batch(), [new(payload=b"%d" % n, tenant=f"t{n % 2}") for n in range(10)])
            answers = await together(*[store.enqueue(batch) for store in stores])
            assert [dict(answer.existing) for answer in answers] == [{}] * 4
        stats = await queue_stats(stores[0])
        assert (stats.ready, stats.enqueued_total) == (10 * ROUNDS, 10 * ROUNDS)
        assert len(ids(await claim(stores[0], 1000))) == 10 * ROUNDS


async def test_the_same_key_at_once_makes_one_job(store_url: str):
    async with side_by_side(store_url, 6) as stores:
        for round in range(ROUNDS):
            batches = [Batch(new_batch(), [new(), new(key=key(f"k{round}"))]) for _ in stores]
            answers = await together(*[store.enqueue(batch) for store, batch in zip(stores, batches, strict=True)])
            makers = [batch for batch, answer in zip(batches, answers, strict=True) if not answer.existing]
            assert len(makers) == 1
            made = job_id(makers[0].id, 1)
            assert [dict(answer.existing) for answer in answers if answer.existing] == [{1: made}] * 5
        assert await counts(stores[0]) == {"ready": 7 * ROUNDS}


async def test_crossing_keys_neither_deadlock_nor_double(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        for round in range(ROUNDS):
            names = [f"{round}-{n}" for n in range(10)]
            orders = [names, names[::-1], names[5:] + names[:5], names[::2] + names[1::2]]
            batches = [Batch(new_batch(), [new(key=key(name)) for name in order]) for order in orders]
            answers = await together(*[store.enqueue(batch) for store, batch in zip(stores, batches, strict=True)])
            assert sum(10 - len(answer.existing) for answer in answers) == 10
            assert (await queue_stats(stores[0])).ready == 10 * (round + 1)


async def test_conflicting_keys_at_once_have_one_winner(store_url: str):
    async with side_by_side(store_url, 4) as stores:
        for round in range(ROUNDS):

            async def send(store: Store, digest: bytes, name: str = f"k{round}") -> bool:
                try:
                    await put_jobs(store, new(payload=digest, key=key(name, digest)), new())
                except IdempotencyConflict:
                    return False
                return True

            won = await together(*[send(store, b"%d" % n) for n, store in enumerate(stores)])
            assert sum(won) == 1
            assert (await queue_stats(stores[0])).enqueued_total == 2 * (round + 1)


@pytest.mark.parametrize("threads", [4])
def test_threads_enqueue_and_look_at_the_same_time(store_url: str, threads: int):
    async def work(store: Store) -> list[JobId]:
        made = [id for n in range(25) for id in await put(store, n % 4 + 1, tenant=f"t{n % 3}")]
        assert None not in await store.get(made)
        await store.stats()
        return made

    async def look_at_all(store: Store) -> list[JobId]:
        return [job.id for job in await find_all(store)]

    made = in_threads(store_url, *[work] * threads)
    [found] = in_threads(store_url, look_at_all)
    assert sorted(id for part in made for id in part) == found[::-1]
