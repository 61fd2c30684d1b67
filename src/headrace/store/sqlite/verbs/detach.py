"""DETACH: one job of a lease gets a lease of its own."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.model.lease import Token
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.lease import Held, Ranges

_SQL = load("detach")


def detach(tx: Tx, token: Token, position: int, fresh: Token) -> bool:
    lease = leases.read(tx, token)
    if lease is None or not 0 <= position < lease.size or lease.settled >> position & 1:
        return False
    key, held = lease.ranges.keys()[position], lease.ranges.spread()[position]
    lease.settled |= 1 << position
    leases.keep(tx, lease)
    alone = Ranges([lease.ranges.places[held.place]], [Held(key, 1, held.attempt, held.failures, held.crashes, 0)])
    leases.insert(tx, replace(lease, token=fresh.bytes, size=1, settled=0, ranges=alone))
    tx.cur.execute(_SQL["move_stop"], (fresh.bytes, token.bytes, position))
    return True
