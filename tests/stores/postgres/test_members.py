"""Members of a group on PostgreSQL: the short call that stores them, and looks at their gate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conformance.kit import key, new
from conformance.test_gates import a_gate, counts, waiting
from headrace.errors import GroupOver
from headrace.model.gate import Counts, Edge, GateId, NewGate
from headrace.model.job import Batch, JobState, UniqueLock, job_id, new_batch
from headrace.model.outcome import DONE
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs.enqueue_linked import members_args
from headrace.store.postgres.verbs.follow import gap_after
from stores.postgres.kit import blocked, take


def members(gate: GateId, count: int = 3) -> Batch:
    id = new_batch()
    return Batch(id, [new()] * count, (), (Edge(job_id(id, 0), job_id(id, count - 1), gate),))


async def open_gate(store: PostgresStore) -> NewGate:
    gate = a_gate(sealed=False)
    await store.enqueue(Batch(new_batch(), [], (gate,)))
    return gate


def test_only_members_of_one_stored_gate_take_the_short_call():
    gate, other = a_gate(), a_gate()
    batch = members(gate.id)
    assert members_args(batch, None) is not None
    id, edges = batch.id, batch.edges
    for unlike in (
        Batch(id, batch.jobs, (gate,), edges),
        Batch(id, batch.jobs, (), edges, (gate.id,)),
        Batch(id, batch.jobs, (), (*edges, Edge(job_id(id, 0), job_id(id, 0), other.id))),
        Batch(id, batch.jobs, (), (Edge(other.id, other.id, gate.id),)),
        Batch(id, batch.jobs, (), (Edge(job_id(new_batch(), 0), job_id(new_batch(), 0), gate.id),)),
        Batch(id, [new(), new(), waiting(other.id)], (), edges),
        Batch(id, [new(), new(), new(key=key("k"))], (), edges),
        Batch(id, [new(), new(), new(unique=UniqueLock("u", frozenset({JobState.READY})))], (), edges),
    ):
        assert members_args(unlike, None) is None


async def test_a_repeated_call_counts_its_members_once(pg: PostgresStore, sql: Any):
    gate = await open_gate(pg)
    batch = members(gate.id)
    for _ in range(2):
        await pg.enqueue(batch)
    assert await counts(pg, gate.id) == Counts(3)
    assert await sql.fetchval("select count(*) from headrace.edge") == 1
    await pg.enqueue(Batch(new_batch(), [], seals=(gate.id,)))
    lease = await take(pg)
    await pg.settle(lease.token, [(at, DONE) for at in range(3)])
    # The gate is over now, but this call was there before.
    await pg.enqueue(batch)
    assert await counts(pg, gate.id) == Counts(3, done=3)
    with pytest.raises(GroupOver):
        await pg.enqueue(members(gate.id))


async def test_members_do_not_come_into_a_group_that_ends_meanwhile(pg: PostgresStore, sql: Any):
    """The call waits for a fold, which holds the row of the gate, and sees what it did."""
    gate = await open_gate(pg)
    async with asyncio.timeout(60):
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetch("select from headrace.gate for update")
        call = asyncio.create_task(pg.enqueue(members(gate.id)))
        await blocked(sql)
        await sql.execute("update headrace.gate set sealed = true")
        await transaction.commit()
        with pytest.raises(GroupOver):
            await call
    assert await sql.fetchval("select count(*) from headrace.job") == 0


def test_looks_become_rare_when_two_of_them_took_long():
    usual = gap_after(0.001, 0.001)
    assert gap_after(2.0, 0.001) == usual  # planning, or a busy machine
    assert gap_after(0.001, 2.0) == usual
    assert gap_after(2.0, 1.0) == 20.0
