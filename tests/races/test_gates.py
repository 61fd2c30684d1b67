"""Gates under calls at the same moment: no end and no signal is missed, and nothing is counted twice."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from conformance.kit import LONG, claim, ids, new, put, queue_stats, run_one, settle_all, state, take
from conformance.test_gates import a_gate, counts, group, promote_all, waiting
from headrace.errors import GroupOver
from headrace.model.gate import Counts, Edge, Needs, Wait
from headrace.model.job import Batch, JobId, JobState, job_id, new_batch
from headrace.model.lease import Lease
from headrace.model.outcome import Again
from headrace.store.contract import Store
from races.kit import side_by_side, together

ROUNDS = 200
RUN = 80
"""Jobs of a run: the Redis store keeps 64 and more as a lane."""
READY, BLOCKED = JobState.READY, JobState.BLOCKED


async def all_promote(stores: list[Store]) -> None:
    """Each store object finishes what it has under way."""
    for store in stores:
        await promote_all(store)


async def enqueue_waiting(store: Store, gate: UUID, needs: Needs = Needs.ENDED) -> JobId:
    batch = Batch(new_batch(), [waiting(gate, needs, queue="later")])
    await store.enqueue(batch)
    return job_id(batch.id, 0)


async def test_the_last_two_members_end_at_once(store_url: str):
    async with side_by_side(store_url, 2) as stores:
        for _ in range(ROUNDS):
            gate, _, [done] = await group(stores[0], 2, Needs.DONE)
            leases = [await take(store, 1) for store in stores]
            await together(*[settle_all(store, lease) for store, lease in zip(stores, leases, strict=True)])
            await all_promote(stores)
            assert await state(stores[0], done) is READY
            assert await counts(stores[1], gate) == Counts(2, done=2)
            assert await run_one(stores[0]) == done


async def test_suspend_against_signal(store_url: str):
    async with side_by_side(store_url, 2) as stores:
        worker, other = stores
        for _ in range(ROUNDS):
            [id] = await put(worker)
            lease = await take(worker)
            one, two = a_gate(signalled=True), a_gate(signalled=True)
            again = Again(0, 0, gates=(one, two), waits=(Wait(one.id), Wait(two.id)))
            refused, *signalled = await asyncio.gather(
                worker.settle(lease.token, [(0, again)]),
                other.signal(one, b"1", LONG),
                other.signal(two, b"2", LONG),
            )
            assert (refused, signalled) == (frozenset(), [True, True])
            await all_promote(stores)
            assert await state(worker, id) is READY
            assert await run_one(worker) == id


async def test_a_run_against_its_gate_and_an_operator(store_url: str):
    """A large run begins to wait, and some of an earlier one are cancelled and deleted, while the gate of both opens."""
    async with side_by_side(store_url, 3) as stores:
        worker, producer, operator = stores
        for _ in range(ROUNDS // 10):
            gate = a_gate(signalled=True)
            runs = [Batch(new_batch(), [waiting(gate.id)] * RUN, (gate,)) for _ in range(2)]
            first, second = ([job_id(run.id, ord) for ord in range(RUN)] for run in runs)
            await producer.enqueue(runs[0])
            _, _, cancelled, deleted = await asyncio.gather(
                worker.signal(gate, b"", LONG),
                producer.enqueue(runs[1]),
                operator.cancel(first[1:4]),
                operator.delete(first[7:9]),
            )
            assert (len(cancelled), deleted) == (3, set(first[7:9]))
            await all_promote(stores)
            ran: list[JobId] = []
            while len(ran) < 2 * RUN - 5:
                leases = await asyncio.gather(*[claim(store, 30) for store in stores])
                for store, lease in zip(stores, leases, strict=True):
                    if lease is not None:
                        ran += ids(lease)
                        await settle_all(store, lease)
            assert sorted(ran) == sorted([first[0], *first[4:7], *first[9:], *second])
            assert await claim(worker) is None
            assert (await queue_stats(worker)).blocked == 0


async def test_members_are_added_while_the_last_one_ends(store_url: str):
    outcomes: set[bool] = set()
    async with side_by_side(store_url, 2) as stores:
        worker, producer = stores
        for _ in range(ROUNDS):
            gate, _, [done] = await group(worker, 1, Needs.DONE)
            lease = await take(worker, 1)
            more = new_batch()
            batch = Batch(more, [new()], (), (Edge(job_id(more, 0), job_id(more, 0), gate),))
            _, added = await asyncio.gather(settle_all(worker, lease), added_to(producer, batch))
            outcomes.add(added)
            await all_promote(stores)
            if added:
                assert await state(worker, done) is BLOCKED
                assert await run_one(worker) == job_id(more, 0)
                await all_promote(stores)
            assert await counts(worker, gate) == Counts(1 + added, done=1 + added)
            assert await run_one(worker) == done
    assert outcomes


async def added_to(store: Store, batch: Batch) -> bool:
    try:
        await store.enqueue(batch)
    except GroupOver:
        return False
    return True


async def move(store: Store, what: str, id: JobId, lease: Lease | None) -> None:
    if what == "claim":
        assert await run_one(store) == id
    elif what == "settle":
        assert lease is not None
        await settle_all(store, lease)
    elif what == "cancel":
        await store.cancel([id])
    elif what == "delete":
        assert await store.delete([id]) == {id}
    else:
        assert await store.retry([id]) == {id}
        assert await run_one(store) == id


@pytest.mark.parametrize("what", ["claim", "settle", "cancel", "delete", "retry"])
async def test_attach_against(store_url: str, what: str):
    """A job begins to wait for one that another call moves or ends at the same moment; and both count on a gate."""
    async with side_by_side(store_url, 2) as stores:
        worker, producer = stores
        for _ in range(ROUNDS // 4):
            [id] = await put(worker)
            lease = await take(worker) if what in {"settle", "retry"} else None
            if what == "retry" and lease is not None:
                await settle_all(worker, lease)
            gate = a_gate()
            joined = Batch(new_batch(), [waiting(gate.id, queue="later")], (gate,), (Edge(id, id, gate.id),))

            waits, _, _ = await asyncio.gather(
                enqueue_waiting(producer, id), producer.enqueue(joined), move(worker, what, id, lease)
            )
            await all_promote(stores)
            assert await state(worker, waits) is READY
            good = what in {"claim", "settle", "retry"}
            assert await counts(worker, gate.id) == Counts(1, done=int(good), cancelled=int(not good))
            assert await state(worker, job_id(joined.id, 0)) is (READY if good else JobState.CANCELLED)
