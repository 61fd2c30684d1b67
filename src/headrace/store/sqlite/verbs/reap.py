"""REAP: expired leases change hands under fresh tokens."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from headrace.model.lease import Orphan, WorkerId, new_token
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import micros
from headrace.store.sqlite.verbs.claim import claimed

_SQL = load("reap")
_PATIENCE = 0.5
"""Seconds. A reaper that waited longer for the write lock takes nothing: workers could not renew their leases meanwhile."""


def nothing_expired(tx: Tx) -> list[Orphan] | None:
    """The answer if no lease has expired."""
    return None if leases.any_expired(tx) else []


def reap(tx: Tx, worker: WorkerId, ttl: timedelta, limit: int) -> list[Orphan]:
    if tx.waited > _PATIENCE:
        return []
    return [_take_over(tx, lease, worker, ttl) for lease in leases.expired(tx, limit)]


def _take_over(tx: Tx, lease: leases.LeaseRow, worker: WorkerId, ttl: timedelta) -> Orphan:
    token = new_token()
    jobs = claimed(tx, lease)
    tx.cur.execute(_SQL["take_over"], (token.bytes, worker.bytes, tx.now + micros(ttl), lease.token))
    tx.cur.execute(_SQL["take_stops"], (token.bytes, lease.token))
    return Orphan(token, jobs, bool(lease.suspect), WorkerId(UUID(bytes=lease.worker)), lease.cause or "lease expired")
