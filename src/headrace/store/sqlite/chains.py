"""Chains: runs of jobs in which each waits for the one before it are one row, whose beginning moves on.

Only the end that chains are made for, *done*, is told from the row. Before any other end matters to a chain, its jobs become
ordinary blocked runs of one job each.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import BLOCKED, READY, Tx
from headrace.store.sqlite.rows import Bulk, Row

_SQL = load("chains")
INSERT_CHAINS = Bulk(_SQL["insert"])


def go_on(tx: Tx, keys: Sequence[int]) -> None:
    """Release the jobs of chains that wait for these, which are done."""
    for queue, count, whole, ends in tx.cur.execute(_SQL["after"], (str(keys),)).fetchall():
        tx.cur.execute(_SQL["release"], (ends,))
        tx.cur.execute(_SQL["shorten"], (ends,))
        if whole:
            tx.cur.execute(_SQL["drop_empty"], (ends,))
        tx.depth.move(queue, BLOCKED, READY, count)


def loosen(tx: Tx, keys: Sequence[int]) -> None:
    """Make ordinary blocked jobs of the chains whose first job waits for one of these."""
    for _, _, _, ends in tx.cur.execute(_SQL["after"], (str(keys),)).fetchall():
        tx.cur.execute(_SQL["loosen"], (ends,))
        tx.cur.execute(_SQL["drop"], (ends,))


def around(tx: Tx, key: int) -> Row | None:
    """The chain that has a key, as a run in `headrace_blocked` is from `lo` on."""
    row: Row | None = tx.cur.execute(_SQL["around"], (key,)).fetchone()
    return None if row is None or row[0] > key else row


def take_out(tx: Tx, end: int, key: int) -> None:
    """Remove a job from its chain. The jobs behind it are a chain that waits for it still."""
    tx.cur.execute(_SQL["first_part"], (end, key))
    if key < end:
        tx.cur.execute(_SQL["begin_later"], (end, key + 1))
    else:
        tx.cur.execute(_SQL["drop"], (str([end]),))
