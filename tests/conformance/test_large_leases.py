"""What the jobs of large leases count on gates: each on its own gate, whatever lies beside it in the lease."""

from __future__ import annotations

import random

import pytest

from conformance.kit import claim, new, run_one, settle_all
from conformance.test_gates import a_gate, promote_all
from headrace.model.gate import Counts, Edge, Wait
from headrace.model.job import Batch, JobId, job_id, new_batch
from headrace.model.outcome import DONE, Again
from headrace.store.contract import Store

GATES = 4


@pytest.mark.parametrize("seed", range(6))
async def test_each_job_of_a_large_lease_counts_on_its_own_gate(store: Store, seed: int):
    rng = random.Random(seed)
    gates = [a_gate(sealed=False) for _ in range(GATES)]
    await store.enqueue(Batch(new_batch(), [], tuple(gates)))
    members: list[set[JobId]] = [set() for _ in gates]
    tenants = ["", "a", "b"] if seed % 2 else [""]
    everyone: list[JobId] = []
    for _ in range(8):
        batch, size = new_batch(), rng.choice([1, 2, 30, 90])
        lanes = [rng.choice(tenants) for _ in range(rng.choice([1, size]))]
        jobs = [new(tenant=lanes[place * len(lanes) // size]) for place in range(size)]
        edges: list[Edge] = []
        for gate, mine in zip(gates, members, strict=True):
            first = rng.randrange(size)
            last = rng.randrange(first, size)
            edges.append(Edge(job_id(batch, first), job_id(batch, last), gate.id))
            mine.update(job_id(batch, place) for place in range(first, last + 1))
        await store.enqueue(Batch(batch, jobs, (), tuple(edges)))
        everyone += (job_id(batch, place) for place in range(size))
    cancelled = rng.sample(everyone, len(everyone) // 10)
    await store.cancel(cancelled)
    if (back := await claim(store, 40)) is not None and seed >= 2:
        await settle_all(store, back, Again(failures=0, crashes=0))
    elif back is not None:
        await settle_all(store, back)
    while (lease := await claim(store, rng.choice([7, 60, 300]))) is not None:
        await settle_all(store, lease)
    await promote_all(store)
    for gate, mine, found in zip(gates, members, await store.gates([gate.id for gate in gates]), strict=True):
        gone = len(mine & set(cancelled))
        assert found is not None
        assert found.counts == Counts(len(mine), done=len(mine) - gone, cancelled=gone), gate.id


async def test_a_large_lease_releases_what_waits_for_each_of_its_jobs(store: Store):
    batch = new_batch()
    waits = [new(queue="then", wait=Wait(job_id(batch, place))) for place in range(0, 60, 7)]
    await store.enqueue(Batch(batch, [*[new()] * 60, *waits]))
    lease = await claim(store, 100)
    assert lease is not None
    assert len(lease.jobs) == 60
    await store.settle(lease.token, [(place, DONE) for place in range(60)])
    await promote_all(store)
    released = [await run_one(store, DONE, "then") for _ in waits]
    assert sorted(released) == [job_id(batch, 60 + number) for number in range(len(waits))]
