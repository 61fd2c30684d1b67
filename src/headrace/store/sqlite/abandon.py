"""ABANDON and RETIRE: a worker died, or left in peace."""

from __future__ import annotations

from headrace.lease import WorkerId
from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.rows import text
from headrace.store.sqlite.statements import load

_EXPIRE = load("abandon")["expire"]
_FORGET = load("retire")["forget"]


def abandon(tx: Tx, worker: WorkerId, cause: str) -> int:
    return tx.cur.execute(_EXPIRE, (tx.now, text(cause), worker.bytes)).rowcount


def retire(tx: Tx, worker: WorkerId) -> None:
    tx.cur.execute(_FORGET, (worker.bytes,))
