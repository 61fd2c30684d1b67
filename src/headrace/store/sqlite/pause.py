"""PAUSE and RESUME a queue."""

from __future__ import annotations

from headrace.store.sqlite.depth import Tx
from headrace.store.sqlite.rows import text
from headrace.store.sqlite.statements import load

_SQL = load("pause")


def pause(tx: Tx, queue: str, by: str) -> None:
    tx.cur.execute(_SQL["pause"], (queue, text(by), tx.now))


def resume(tx: Tx, queue: str) -> None:
    tx.cur.execute(_SQL["resume"], (queue,))
    tx.depth.awake.add(queue)
