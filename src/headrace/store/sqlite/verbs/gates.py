"""SIGNAL, and the looks at gates: GATES, GROUPS, LINKS."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from headrace.model.gate import Counts, Edge, Gate, GateId, Links, Needs, NewGate, Wait, is_gate
from headrace.model.job import job_id
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.gates import SQL, follow, id_of, make, source_of
from headrace.store.sqlite.rows import Row, as_json, micros, moment


def signal(tx: Tx, gate: NewGate, value: bytes, keep: timedelta) -> bool:
    make(tx, [gate])
    row = tx.cur.execute(SQL["signal"], (gate.id.bytes, value, tx.now + micros(keep), tx.now)).fetchone()
    if row is None:
        return False
    follow(tx, {-row[0]: None})
    return True


def gates(tx: Tx, ids: Sequence[GateId]) -> list[Gate | None]:
    rows = [tx.cur.execute(SQL["gate"], (id.bytes,)).fetchone() for id in ids]
    return [None if row is None else _gate(row) for row in rows]


def groups(tx: Tx, tenant: str | None, before: GateId | None, limit: int) -> list[Gate]:
    values = (tenant, None if before is None else before.bytes, limit)
    return [_gate(row) for row in tx.cur.execute(SQL["groups"], values).fetchall()]


def links(tx: Tx, id: UUID, after: UUID | None, limit: int) -> Links:
    source = source_of(tx, id)
    if source is None:
        return Links()
    start = source >> 16 << 16 if source > 0 else source
    counted = tx.cur.execute(SQL["counted_on"], (as_json([(source, source, start)]),)).fetchmany(limit)
    into = [gate for _, gate, *_ in counted]
    blocked: list[UUID] = []
    for lo, hi in tx.cur.execute(SQL["blocked"], (source, limit)).fetchall():
        batch, _ = divmod(lo, 1 << 16)
        first = id_of(tx, batch << 16)
        blocked += [job_id(first, key & 0xFFFF) for key in range(lo, min(hi, lo + limit - len(blocked) - 1) + 1)]
    return Links(
        tuple(_members(tx, source, after, limit)),
        tuple(GateId(id_of(tx, -gate)) for gate in into),
        tuple(sorted(blocked)),
    )


def _members(tx: Tx, source: int, after: UUID | None, limit: int) -> list[Edge]:
    if source > 0:
        return []
    gate = GateId(id_of(tx, source))
    floor = 0
    if after is not None and not is_gate(after):
        floor = source_of(tx, after) or 0
    rows = tx.cur.execute(SQL["members"], (-source, floor, limit)).fetchall()
    if after is None or is_gate(after):
        rows += tx.cur.execute(SQL["gate_members"], (-source,)).fetchall()
    edges = sorted((Edge(id_of(tx, first), id_of(tx, last), gate) for first, last in rows), key=lambda edge: edge.first)
    return [edge for edge in edges if after is None or edge.first > after][:limit]


def waits_of(tx: Tx, key: int) -> tuple[Wait, ...]:
    """What a blocked job waits for."""
    return tuple(
        Wait(id_of(tx, source), Needs(needs)) for source, needs in tx.cur.execute(SQL["waits"], (key,)).fetchall()
    )


def _gate(row: Row) -> Gate:
    id, queue, label, tenant, sealed, size, done, dead, cancelled, signalled, value, made_at, changed_at = row
    return Gate(
        id=GateId(UUID(bytes=id)),
        queue=queue,
        label=label,
        tenant=tenant,
        sealed=bool(sealed),
        counts=Counts(size, done, dead, cancelled),
        signalled=bool(signalled),
        value=value,
        made_at=moment(made_at),
        changed_at=moment(changed_at),
    )
