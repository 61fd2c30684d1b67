"""Gates on PostgreSQL: the rules in SQL, users' transactions, clients that die, and what is too much for one statement."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from conformance.kit import CANCELLED, DEAD, LONG, new, run_one, settle_all, state, states
from conformance.test_gates import a_gate, chain, counts, group, promote_all, waiting
from conformance.test_workflow_prune import test_after_the_last_retention_nothing_is_left as everything_ends
from conftest import opened
from headrace.errors import GroupOver, KeyHeld, Unavailable
from headrace.model.gate import Counts, Edge, GateId, Needs, Verdict, Wait, as_member, verdict
from headrace.model.job import Batch, JobState, job_id, new_batch
from headrace.model.outcome import DONE, Again
from headrace.store.postgres.store import PostgresStore
from headrace.testing.clock import FakeClock
from stores.postgres.kit import blocked, claim, deadlocks, put, take

READY, BLOCKED, RUNNING = JobState.READY, JobState.BLOCKED, JobState.RUNNING
SOME_COUNTS = [
    Counts(size, done, dead, cancelled)
    for size, done, dead, cancelled in product(range(4), repeat=4)
    if done + dead + cancelled <= size
]


def member_of(gate: GateId, count: int = 1) -> Batch:
    id = new_batch()
    return Batch(id, [new()] * count, (), (Edge(job_id(id, 0), job_id(id, count - 1), gate),))


# ── the rules ────────────────────────────────────────────────────────────────


async def test_the_rules_in_sql_are_those_of_the_model(sql: Any):
    numbers = {Verdict.WAIT: 0, Verdict.RELEASE: 1, Verdict.CANCEL: 2}
    needs = {1: Needs.DONE, 2: Needs.ENDED, 3: Needs.FAILED}
    members = {Counts(1): 0, Counts(1, done=1): 1, Counts(1, dead=1): 2, Counts(1, cancelled=1): 3}
    for each, sealed in product(SOME_COUNTS, (False, True)):
        figures = (each.size, each.done, each.dead, each.cancelled, sealed)
        shown = await sql.fetchval("select headrace.as_member($1, $2, $3, $4, $5)", *figures)
        assert shown == members[as_member(each, sealed=sealed)], figures
        for number, need in needs.items():
            said = await sql.fetchval("select headrace.verdict($6, $1, $2, $3, $4, $5)", *figures, number)
            assert said == numbers[verdict(need, each, sealed=sealed)], (need, figures)


# ── what one statement does ──────────────────────────────────────────────────


async def test_a_link_of_a_chain_is_released_by_the_settlement_itself(pg: PostgresStore, sql: Any):
    await chain(pg, 2)
    lease = await take(pg)
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
        assert await sql.fetchval("select count(*) from headrace.ready") == 1
    assert await sql.fetchval("select count(*) from headrace.toll") == 0
    assert await claim(pg) is not None


async def test_a_settlement_leaves_one_toll_for_a_gate_and_does_not_touch_it(pg: PostgresStore, sql: Any):
    gate, _, _ = await group(pg, 50, Needs.DONE)
    before = await sql.fetchval("select xmin::text from headrace.gate")
    lease = await take(pg)
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(at, CANCELLED if at == 7 else DONE) for at in range(50)])
        assert [tuple(row) for row in await sql.fetch("select * from headrace.toll")] == [(gate, 0, 49, 0, 1)]
        assert await sql.fetchval("select xmin::text from headrace.gate") == before


async def test_a_client_that_dies_after_its_settlement_leaves_the_rest_to_promote(
    pg: PostgresStore, url: str, sql: Any
):
    gate, _, [done] = await group(pg, 1, Needs.DONE)
    worker = PostgresStore(url)
    await worker.open()
    lease = await take(worker)
    # The transaction of the settlement commits, and the client does nothing more.
    async with sql.transaction():
        await worker.asettle_in(sql, lease.token, [(0, DONE)])
    await worker.close()
    assert await counts(pg, gate) == Counts(1, done=1)
    assert await state(pg, done) is BLOCKED
    assert (await pg.promote()).moved > 0
    assert await state(pg, done) is READY


async def test_a_million_jobs_are_released_as_the_runs_that_they_are(pg: PostgresStore, sql: Any):
    gate = a_gate(signalled=True)
    await pg.enqueue(Batch(new_batch(), [], (gate,)))
    for _ in range(3):
        await pg.enqueue(Batch(new_batch(), [waiting(gate.id)] * 1000))
    await pg.signal(gate, b"", LONG)
    await promote_all(pg)
    assert await sql.fetchval("select count(*) from headrace.ready") == 3
    assert await sql.fetchval("select count(*) from headrace.blocked") == 0


async def test_many_jobs_are_cancelled_in_pieces(pg: PostgresStore, sql: Any):
    [first] = await put(pg)
    waits = Batch(new_batch(), [waiting(first)] * 25_000)
    await pg.enqueue(waits)
    async with sql.transaction():
        await sql.fetch("select * from headrace.cancel($1, null)", [first])
    pieces = 0
    while (moved := (await pg.promote()).moved) > 0:
        assert moved <= 10_100
        pieces += 1
    assert pieces >= 3
    assert await sql.fetchval("select count(*) from headrace.ending where state = 3") == 25_001


async def test_a_long_cascade_goes_on_in_promote(pg: PostgresStore, sql: Any):
    links = await chain(pg, 1000)
    async with sql.transaction():
        await sql.fetch("select * from headrace.cancel($1, null)", [links[0]])
    await promote_all(pg)
    assert set(await states(pg, links)) == {JobState.CANCELLED}
    assert await sql.fetchval("select count(*) from headrace.toll") == 0


# ── users' transactions ──────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_long_transaction_that_adds_a_member_holds_its_group_only(pg: PostgresStore, sql: Any, end: str):
    gate, _, [done] = await group(pg, 1, Needs.DONE)
    other, _, [other_done] = await group(pg, 1, Needs.DONE)
    transaction = sql.transaction()
    await transaction.start()
    more = member_of(gate)
    await pg.aenqueue_in(sql, more)
    for _ in range(2):
        await run_one(pg)
    answer = await pg.promote()
    assert answer.next_due is not None
    assert await states(pg, [done, other_done]) == [BLOCKED, READY]
    assert await counts(pg, other) == Counts(1, done=1)
    if end == "commit":
        await transaction.commit()
        await promote_all(pg)
        assert await state(pg, done) is BLOCKED
        assert await run_one(pg) == other_done
        assert await run_one(pg) == job_id(more.id, 0)
    else:
        await transaction.rollback()
    await promote_all(pg)
    assert await state(pg, done) is READY


async def test_a_group_that_is_over_leaves_the_users_transaction_alive(pg: PostgresStore, sql: Any):
    gate, _, _ = await group(pg, 1)
    await run_one(pg)
    async with sql.transaction():
        with pytest.raises(GroupOver):
            await pg.aenqueue_in(sql, member_of(gate))
        assert await sql.fetchval("select 1") == 1
    assert await claim(pg) is None


async def test_gates_and_waits_are_committed_with_the_users_transaction(pg: PostgresStore, sql: Any):
    gate, id = a_gate(), new_batch()
    made = Batch(id, [new(), waiting(gate.id)], (gate,), (Edge(job_id(id, 0), job_id(id, 0), gate.id),))
    transaction = sql.transaction()
    await transaction.start()
    await pg.aenqueue_in(sql, made)
    assert await pg.gates([gate.id]) == [None]
    await transaction.commit()
    assert await states(pg, [job_id(id, 0), job_id(id, 1)]) == [READY, BLOCKED]
    lease = await take(pg)
    one = a_gate(signalled=True)
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(0, Again(0, 0, gates=(one,), waits=(Wait(one.id),)))])
    assert await state(pg, job_id(id, 0)) is BLOCKED
    await pg.signal(one, b"", LONG)
    await promote_all(pg)
    assert await run_one(pg) == job_id(id, 0)


async def test_an_attach_waits_for_a_transaction_that_ends_the_job(pg: PostgresStore, sql: Any, url: str):
    [id] = await put(pg)
    lease = await take(pg)
    transaction = sql.transaction()
    await transaction.start()
    await pg.asettle_in(sql, lease.token, [(0, DONE)])
    waits = Batch(new_batch(), [waiting(id)])
    attaching = asyncio.ensure_future(pg.enqueue(waits))
    await blocked(sql)
    await transaction.commit()
    await attaching
    await promote_all(pg)
    assert await state(pg, job_id(waits.id, 0)) is READY


async def test_an_attach_does_not_wait_for_ever(pg: PostgresStore, sql: Any):
    [id] = await put(pg)
    lease = await take(pg)
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
        with pytest.raises(KeyHeld):
            await pg.enqueue(Batch(new_batch(), [waiting(id)]))


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_a_settlement_does_not_overlook_a_job_that_began_to_wait(pg: PostgresStore, sql: Any, level: str):
    [id] = await put(pg)
    lease = await take(pg)
    transaction = sql.transaction(isolation=level)
    await transaction.start()
    await sql.fetch("select from headrace.lease")
    waits = Batch(new_batch(), [waiting(id)])
    await pg.enqueue(waits)
    with pytest.raises(Unavailable):
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
    await transaction.rollback()
    async with sql.transaction(isolation=level):
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
    await promote_all(pg)
    assert await state(pg, job_id(waits.id, 0)) is READY


# ── locks ────────────────────────────────────────────────────────────────────


async def test_a_waiting_job_that_a_user_holds_is_released_when_the_user_lets_go(pg: PostgresStore, sql: Any):
    first, second = await chain(pg, 2)
    transaction = sql.transaction()
    await transaction.start()
    # A job of this transaction waits for the second one, which stays where it is until the transaction ends.
    third = Batch(new_batch(), [waiting(second)])
    await pg.aenqueue_in(sql, third)
    assert await run_one(pg) == first
    await pg.promote()
    assert await state(pg, second) is BLOCKED
    await transaction.commit()
    await promote_all(pg)
    assert await state(pg, second) is READY
    assert await run_one(pg) == second
    await promote_all(pg)
    assert await state(pg, job_id(third.id, 0)) is READY


async def test_a_suspension_waits_for_a_look_at_its_gate(pg: PostgresStore, sql: Any):
    """A look that has moved what waits, and has not committed, would overlook a job that begins to wait meanwhile."""
    gate = a_gate(signalled=True)
    await pg.enqueue(Batch(new_batch(), [waiting(gate.id)], (gate,)))
    [id] = await put(pg)
    lease = await take(pg)
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("select from headrace.gate where id = $1 for update", gate.id)
    again = Again(0, 0, waits=(Wait(gate.id),))
    suspending = asyncio.ensure_future(pg.settle(lease.token, [(0, again)]))
    async with asyncio.timeout(60):
        await blocked(sql)
    await sql.execute("update headrace.gate set done = 1, value = '' where id = $1", gate.id)
    await transaction.commit()
    assert await suspending == frozenset()
    assert await state(pg, id) is READY


async def test_suspended_jobs_with_many_gates_meet_no_deadlock(pg: PostgresStore, url: str, sql: Any):
    other = PostgresStore(url)
    await other.open()
    for _ in range(20):
        made = await put(pg, 10)
        lease = await take(pg)
        gates = [a_gate(signalled=True) for _ in range(4)]
        waits = tuple(Wait(gate.id) for gate in gates)
        again = Again(0, 0, timedelta(microseconds=1), gates=tuple(gates), waits=waits)
        await pg.settle(lease.token, [(at, again if at % 2 else Again(0, 0, waits=waits)) for at in range(10)])
        await asyncio.gather(
            *[(pg, other)[at % 2].signal(gate, b"", LONG) for at, gate in enumerate(gates)],
            pg.promote(),
            other.promote(),
            pg.cancel(made[::3]),
        )
        await promote_all(pg)
        await promote_all(other)
        shown = await states(pg, made)
        assert BLOCKED not in shown
        assert shown[::3] == [JobState.CANCELLED] * 4
        await pg.delete(made)
    await other.close()
    assert await deadlocks(sql) == 0
    assert await sql.fetchval("select count(*) from headrace.blocked") == 0


# ── looks, figures and earlier versions ──────────────────────────────────────


async def test_blocked_jobs_in_the_view_and_in_the_figures(pg: PostgresStore, sql: Any):
    await chain(pg, 3)
    assert await sql.fetch("select state, count(*) from headrace.jobs group by 1 order by 1") == [
        ("blocked", 2),
        ("ready", 1),
    ]
    [queue] = (await pg.stats()).queues
    assert (queue.ready, queue.blocked, queue.enqueued_total) == (1, 2, 3)
    await sql.execute("select headrace.fold()")
    [folded] = (await pg.stats()).queues
    assert (folded.ready, folded.blocked) == (1, 2)


async def test_a_worker_of_the_earlier_version_counts_too(pg: PostgresStore, sql: Any):
    gate, _, [done] = await group(pg, 1, Needs.DONE)
    lease = await take(pg)
    row = await sql.fetchrow(
        "select * from headrace.settle(p_token => $1, p_positions => null, p_states => null, p_results => null, p_ttl => null,"
        " p_failures => null, p_crashes => null, p_notes => null, p_run_at => null, p_delay => null, p_suspect => null,"
        " f_index => null, f_attempt => null, f_kind => null, f_message => null, f_traceback => null, f_at => null,"
        " f_worker => null)",
        lease.token,
    )
    assert row[0] == []
    await promote_all(pg)
    assert await counts(pg, gate) == Counts(1, done=1)
    assert await state(pg, done) is READY
    assert len(await sql.fetch("select * from headrace.stats()")) == 1


async def test_ordinary_jobs_leave_no_trace_in_the_tables_of_gates(pg: PostgresStore, sql: Any):
    await put(pg, 10)
    lease = await take(pg)
    await settle_all(pg, lease)
    await put(pg)
    await run_one(pg, DEAD)
    for table in ("gate", "edge", "toll", "blocked"):
        assert await sql.fetchval(f"select count(*) from headrace.{table}") == 0


async def test_after_the_last_retention_no_row_is_left(url: str, sql: Any, clock: FakeClock):
    async with opened(PostgresStore(url, clock=clock)) as store:
        await everything_ends(store, clock)
    tables = ("gate", "edge", "blocked", "toll", "step", "job", "ending", "failure")
    rows = {name: await sql.fetchval(f"select count(*) from headrace.{name}") for name in tables}
    assert rows == dict.fromkeys(tables, 0)


# ── when a gate is looked at ─────────────────────────────────────────────────


async def followed(sql: Any, gate: GateId) -> list[GateId]:
    """Look at a gate, and leave it alone if it was folded within an hour. Returns what was left alone."""
    args = ([gate], 1000, ["", ""], timedelta(hours=1))
    row = await sql.fetchrow("select * from headrace.follow($1, $2, $3, null, $4)", *args)
    return list(row["busy"])


async def test_a_gate_that_was_only_made_a_moment_ago_is_folded(pg: PostgresStore, sql: Any):
    gate, _, [done] = await group(pg, 3, Needs.DONE)
    lease = await take(pg)
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(0, DONE)])
    assert await followed(sql, gate) == []
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(1, DONE)])
    # This one was folded, and goes on.
    assert await followed(sql, gate) == [gate]
    assert await state(pg, done) is BLOCKED
    async with sql.transaction():
        await pg.asettle_in(sql, lease.token, [(2, DONE)])
    # It is over, so that nothing else would come later.
    assert await followed(sql, gate) == []
    assert await state(pg, done) is READY


async def test_a_signal_has_its_effect_when_the_call_returns(pg: PostgresStore, sql: Any):
    gate = a_gate(signalled=True)
    batch = Batch(new_batch(), [waiting(gate.id)], (gate,))
    await pg.enqueue(batch)
    assert await pg.signal(gate, b"", LONG)
    assert await sql.fetchval("select count(*) from headrace.toll") == 0
    assert await state(pg, job_id(batch.id, 0)) is READY


async def test_one_settlement_counts_members_on_all_their_gates(pg: PostgresStore, sql: Any):
    """Two gates have runs among these jobs, and one of them also single jobs."""
    one, two = a_gate(sealed=False), a_gate(sealed=False)
    id = new_batch()
    edges = (
        Edge(job_id(id, 0), job_id(id, 3), one.id),
        Edge(job_id(id, 2), job_id(id, 5), two.id),
        Edge(job_id(id, 5), job_id(id, 5), one.id),
        Edge(job_id(id, 8), job_id(id, 8), two.id),
    )
    await pg.enqueue(Batch(id, [new()] * 9, (one, two), edges))
    lease = await take(pg)
    assert len(lease.jobs) == 9
    await pg.settle(lease.token, [(at, DONE) for at in range(9)])
    await promote_all(pg)
    assert (await counts(pg, one.id), await counts(pg, two.id)) == (Counts(5, done=5), Counts(5, done=5))
