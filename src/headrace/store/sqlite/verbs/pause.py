"""PAUSE and RESUME queues, tenants and tasks; PAUSES: what is paused now."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from headrace.model.records import Pause, PauseKind
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.engine.wakeup import ALL
from headrace.store.sqlite.rows import maybe_moment, micros, moment, text

_SQL = load("pause")


def pause(tx: Tx, kind: PauseKind, name: str, by: str, until: datetime | None) -> None:
    tx.cur.execute(_SQL["pause"], (kind, name, text(by), tx.now, None if until is None else micros(until)))


def resume(tx: Tx, kind: PauseKind, name: str) -> None:
    tx.cur.execute(_SQL["resume"], (kind, name))
    tx.depth.awake.add(name if kind == "queue" else ALL)


def pauses(tx: Tx) -> list[Pause]:
    return [
        Pause(kind, name, by, moment(since), maybe_moment(until))
        for kind, name, by, since, until in tx.cur.execute(_SQL["all"], (tx.now,)).fetchall()
    ]


def pause_of(tx: Tx, kind: PauseKind, name: str) -> tuple[str | None, datetime | None, datetime | None]:
    """(by, since, until) if it is paused now."""
    by, since, until = tx.cur.execute(_SQL["one"], (kind, name, tx.now)).fetchone() or (None, None, None)
    return by, maybe_moment(since), maybe_moment(until)


class HeldBack(NamedTuple):
    """What is paused, each with the end of its pause, if that is known."""

    queues: dict[str, int | None]
    tenants: dict[str, int | None]


def held_back(tx: Tx) -> HeldBack:
    held = HeldBack({}, {})
    for kind, name, until in tx.cur.execute(_SQL["holding"], (tx.now,)):
        (held.queues if kind == "queue" else held.tenants)[name] = until
    return held
