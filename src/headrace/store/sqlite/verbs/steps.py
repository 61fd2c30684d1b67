"""STEPS: finished steps go in under their lease, and come out by job."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import UNDO, Step
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.locate import key_of
from headrace.store.sqlite.rows import Bulk, micros, moment, text

_SQL = load("steps")
_ADD = Bulk(_SQL["add"], blobs=True)


def add_steps(tx: Tx, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
    lease = leases.read(tx, token)
    keys = {} if lease is None else {position: key for position, key, _ in lease.open()}
    _ADD.insert(
        tx.cur,
        [
            (keys[position], text(step.name), step.number, step.digest, step.value, micros(step.at))
            for position, step in steps
            if position in keys
        ],
    )
    return frozenset(position for position, _ in steps if position not in keys)


def read_steps(tx: Tx, id: JobId) -> list[Step]:
    key = key_of(tx, id)
    rows = [] if key is None else tx.cur.execute(_SQL["read"], (key,)).fetchall()
    return [Step(name, number, digest, value, moment(at)) for name, number, digest, value, at in rows]


def is_undone(tx: Tx, key: int) -> bool:
    """Whether a dead job starts over when it is retried, because its undo jobs were let go."""
    return bool(tx.cur.execute(_SQL["is_undone"], (key, UNDO)).fetchone()[0])


def forget_steps(tx: Tx, key: int) -> None:
    tx.cur.execute(_SQL["forget"], (key,))
