"""ABANDON and RETIRE: a worker died, or left in peace."""

from __future__ import annotations

from headrace.model.lease import WorkerId
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import text

_EXPIRE = load("abandon")["expire"]
_RETIRE = load("retire")


def abandon(tx: Tx, worker: WorkerId, cause: str) -> int:
    tx.cur.execute(_RETIRE["free"], (worker.bytes,))
    return tx.cur.execute(_EXPIRE, (tx.now, text(cause), worker.bytes)).rowcount


def retire(tx: Tx, worker: WorkerId) -> None:
    tx.cur.execute(_RETIRE["forget"], (worker.bytes,))
    tx.cur.execute(_RETIRE["free"], (worker.bytes,))
