"""AHEAD: what a waiting job waits behind. A range holds at least one job, so the store looks at `limit` ranges at most."""

from __future__ import annotations

from uuid import UUID

import msgspec

from headrace.model.job import JobId, job_id
from headrace.model.lane import Ahead, Blocked
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.fairness.allowance import Rules, obstacles, read, units_of
from headrace.store.sqlite.locate import locate
from headrace.store.sqlite.rows import maybe_moment
from headrace.store.sqlite.verbs.pause import pause_of

_SQL = load("ahead")
_NAMED = 5
"""Jobs that hold a limit, as many as the answer names."""
_LEASES = 200
"""Leases that are searched for them."""
_JOBS = 1000
"""Jobs of leases that are decoded for them."""


def ahead(tx: Tx, id: JobId, limit: int) -> Ahead | None:
    spot = locate(tx, id)
    if spot is None or spot.state not in {"ready", "scheduled"}:
        return None
    lane = higher = 0
    blocked: list[Blocked] = []
    queue, priority, tenant, _ = spot.lane
    if spot.state == "ready":
        own_lo: int = spot.row[0]
        before = tx.cur.execute(_SQL["lane"], (*spot.lane, own_lo, limit)).fetchone()[0]
        lane = before + spot.key - own_lo
        higher = tx.cur.execute(_SQL["higher"], (queue, priority, limit)).fetchone()[0]
        blocked = _blocked(tx, spot.key)
    by, since, until = pause_of(tx, "queue", queue)
    tenant_by, tenant_since, tenant_until = pause_of(tx, "tenant", tenant)
    return Ahead(
        lane=min(lane, limit),
        higher=min(higher, limit),
        limit=limit,
        suspect=bool(spot.row[5]),
        paused_by=by,
        paused_since=since,
        paused_until=until,
        tenant_paused_by=tenant_by,
        tenant_paused_since=tenant_since,
        tenant_paused_until=tenant_until,
        blocked=tuple(blocked),
    )


def _blocked(tx: Tx, key: int) -> list[Blocked]:
    """The limits that would stop a claim of this job's lane now."""
    (limits,) = tx.cur.execute(_SQL["limits"], (key,)).fetchone()
    if limits is None:
        return []
    units = units_of(msgspec.json.decode(limits, type=list[str]))
    rules = Rules()
    rules.refresh(tx)
    states = read(tx, [unit.key for unit in units])
    blocks: list[Blocked] = []
    for unit in units:
        if (rule := rules.of(unit)) is None:
            continue
        for one in obstacles(unit, rule, states[unit.key], tx.now):
            by = _users(tx, unit.key) if one.concurrency is not None else ()
            blocked = Blocked(
                key=one.key,
                concurrency=one.concurrency,
                held=one.held,
                by=by,
                opens_at=maybe_moment(one.opens_at),
                never=one.never,
            )
            blocks.append(blocked)
    return blocks


def _users(tx: Tx, limit_key: str) -> tuple[UUID, ...]:
    """Some of the running jobs that hold units of a limit key, as far as a bounded number of leases has them."""
    keys: list[int] = []
    for lease in leases.naming(tx, limit_key, _LEASES, _JOBS):
        places = lease.ranges.places
        using = {number for number, place in enumerate(places) if any(key == limit_key for key, _ in place.units or ())}
        for _, key, size, held in lease.pieces():
            if held.place in using:
                keys += range(key, key + min(size, _NAMED))
    keys = keys[:_NAMED]
    batches = dict(tx.cur.execute(_SQL["ids"], (str([key >> 16 for key in keys]),)).fetchall())
    return tuple(job_id(UUID(bytes=batches[key >> 16]), key & 0xFFFF) for key in keys)
