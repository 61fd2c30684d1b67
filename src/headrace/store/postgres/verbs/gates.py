"""GATES: signals, and looks at gates, groups and what hangs together with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypedDict
from uuid import UUID

from headrace.errors import OutcomeUnknown
from headrace.model.gate import Edge, Gate, GateId, Links, NewGate, is_gate
from headrace.model.job import job_id, split_id
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import (
    Bool,
    Bools,
    Bytes,
    Int4,
    Interval,
    Text,
    Texts,
    Time,
    Uuid,
    Uuids,
    call,
    text,
)
from headrace.store.postgres.pool import transaction
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.follow import NOTES, Follow


class SignalArgs(NamedTuple):
    """See `sql/gates.sql`."""

    p_id: Uuid
    p_queue: Text
    p_sealed: Bool
    p_signalled: Bool
    p_label: Text
    p_tenant: Text
    p_value: Bytes
    p_keep: Interval
    p_limit: Int4
    p_notes: Texts
    p_now: Time | None


class GateColumns(TypedDict, total=False):
    """Gates to make, as the functions take them."""

    g_id: Uuids
    g_queue: Texts
    g_sealed: Bools
    g_signalled: Bools
    g_label: Texts
    g_tenant: Texts


_RUNS: Final = 100
"""Runs of jobs that a signal releases itself. The commit of a signal waits for the disk, and its locks with it."""
_SIGNAL: Final = call("signal", SignalArgs)
_GATES: Final = """
select n.* from unnest($1::uuid[]) with ordinality u(id, o) cross join lateral headrace.gate_now(u.id) n order by u.o"""
_GROUPS: Final = """
select n.* from (
    select g.id from headrace.gate g where g.label <> '' and ($1::uuid is null or g.id < $1){} order by g.id desc limit $2
) u cross join lateral headrace.gate_now(u.id) n order by n.id desc"""
_MEMBERS: Final = """
select e.batch, e.lo, e.hi from headrace.edge e
where e.gate = $1 and (e.batch, e.lo) > ($2::uuid, $3::int4) order by e.batch, e.lo limit $4"""
_INTO: Final = """
select e.gate from headrace.edge e
where e.batch = $1::uuid and ((not e.many and e.hi = $2::int4) or (e.many and e.hi >= $2 and e.lo <= $2)) limit $3"""
_BLOCKED: Final = """
select r.batch, o from (
    (select b.batch, b.lo, b.hi from headrace.blocked b
     where b.gate = $1 and b.batch is distinct from headrace.chains_at($1) order by b.batch, b.hi limit $2)
    union all
    -- In a chain, only the next job waits for this one.
    (select b.batch, $4::int4 + 1, $4 + 1 from headrace.blocked b
     where b.gate = headrace.chain_of($3) and b.batch = $3 and b.hi > $4 and b.lo <= $4 + 1)
) r cross join lateral generate_series(r.lo, r.hi) o order by r.batch, o limit $2"""
_BEFORE_ALL: Final = (UUID(int=0), -1)


async def signal(server: Server, follow: Follow, gate: NewGate, value: bytes, keep: timedelta) -> bool:
    args = SignalArgs(
        p_id=gate.id,
        p_queue=gate.queue,
        p_sealed=gate.sealed,
        p_signalled=gate.signalled,
        p_label=text(gate.label),
        p_tenant=gate.tenant,
        p_value=value,
        p_keep=keep,
        p_limit=_RUNS,
        p_notes=NOTES,
        p_now=server.injected,
    )
    try:
        answer = await server.pool.rows(_SIGNAL, *args, write=True)
    except OutcomeUnknown:
        answer = await server.pool.rows(_SIGNAL, *args, write=True)
        if not answer[0][0]:
            # The first call may have signalled it, or another caller did. The store cannot tell which.
            raise
    [(signalled, queues, todo)] = answer
    if queues:
        server.bell.ring(queues)
    if todo:
        await follow.at_once(todo)
    return bool(signalled)


async def gates(server: Server, ids: Sequence[GateId]) -> list[Gate | None]:
    stored = {row["id"]: rows.gate(row) for row in await server.pool.rows(_GATES, list(ids), write=False)}
    return [stored.get(id) for id in ids]


async def groups(server: Server, tenant: str | None, before: GateId | None, limit: int) -> list[Gate]:
    if tenant is None:
        labelled = await server.pool.rows(_GROUPS.format(""), before, limit, write=False)
    else:
        labelled = await server.pool.rows(_GROUPS.format(" and g.tenant = $3"), before, limit, tenant, write=False)
    return [rows.gate(row) for row in labelled]


async def links(server: Server, id: UUID, after: UUID | None, limit: int) -> Links:
    start = _BEFORE_ALL if after is None else place_of(after)

    async def look(connection: Any) -> Links:
        async with transaction(connection, "begin isolation level repeatable read, read only"):
            members = await connection.fetch(_MEMBERS, id, *start, limit)
            into = await connection.fetch(_INTO, *place_of(id), limit)
            blocked = await connection.fetch(_BLOCKED, id, limit, *place_of(id))
        return Links(
            tuple(Edge(_member(batch, lo), _member(batch, hi), GateId(id)) for batch, lo, hi in members),
            tuple(GateId(row[0]) for row in into),
            tuple(job_id(batch, ord) for batch, ord in blocked),
        )

    return await server.pool.run(look, write=False)


def gate_columns(gates: Sequence[NewGate]) -> GateColumns:
    if not gates:
        return {}
    return {
        "g_id": [gate.id for gate in gates],
        "g_queue": [gate.queue for gate in gates],
        "g_sealed": [gate.sealed for gate in gates],
        "g_signalled": [gate.signalled for gate in gates],
        "g_label": [text(gate.label) for gate in gates],
        "g_tenant": [gate.tenant for gate in gates],
    }


def place_of(id: UUID) -> tuple[UUID, int]:
    """Where edges have a member: the batch and the place of a job. A gate stands at the place 0 of its own id."""
    return (id, 0) if is_gate(id) else split_id(id)


def _member(batch: UUID, ord: int) -> UUID:
    return batch if is_gate(batch) else job_id(batch, ord)
