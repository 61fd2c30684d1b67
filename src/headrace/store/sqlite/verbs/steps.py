"""STEPS: finished steps go in under their lease, and come out by job."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import UNDO, Answered, SignalWait, Step
from headrace.store.journal import whole_step
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
    return [] if key is None else _steps_of(tx, key)


def _steps_of(tx: Tx, key: int) -> list[Step]:
    rows = tx.cur.execute(_SQL["read"], (key,)).fetchall()
    return [Step(name, number, digest, value, moment(at)) for name, number, digest, value, at in rows]


def answer_wait(tx: Tx, token: Token, position: int, wait: SignalWait) -> Answered | None:
    key, value = _waiting(tx, token, position, wait)
    if key is None:
        return None
    if value is None:
        return Answered(None, steps=_steps_of(tx, key) if wait.journal else [])
    step = whole_step(wait.step, value)
    name = text(step.name)
    stored = not (wait.journal and tx.cur.execute(_SQL["is_named"], (key, name)).fetchone()[0])
    if stored:
        tx.cur.execute(_SQL["add"], (key, name, step.number, step.digest, step.value, micros(step.at)))
        stored = tx.cur.rowcount > 0
    return Answered(value, stored, _steps_of(tx, key) if wait.journal else [])


def no_answer(tx: Tx, token: Token, position: int, wait: SignalWait) -> Answered | None:
    """The answer if no signal has come, so that nothing has to be written."""
    key, value = _waiting(tx, token, position, wait)
    return (
        None if key is None or value is not None else Answered(None, steps=_steps_of(tx, key) if wait.journal else [])
    )


def _waiting(tx: Tx, token: Token, position: int, wait: SignalWait) -> tuple[int | None, bytes | None]:
    """The key of the job, if the position is not refused, and the value of the signal."""
    lease = leases.read(tx, token)
    keys = () if lease is None else (key for at, key, _ in lease.open() if at == position)
    row = tx.cur.execute(_SQL["value"], (wait.gate.bytes,)).fetchone()
    return next(iter(keys), None), None if row is None else row[0]


def is_undone(tx: Tx, key: int) -> bool:
    """Whether a dead job starts over when it is retried, because its undo jobs were let go."""
    return bool(tx.cur.execute(_SQL["is_undone"], (key, UNDO)).fetchone()[0])


def forget_steps(tx: Tx, key: int) -> None:
    tx.cur.execute(_SQL["forget"], (key,))
