"""HEARTBEAT: renews leases, notes the worker, and answers which leases are lost, what to stop, and whether to do upkeep."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from headrace.model.lease import ORDERS, UPKEEP_PLACES, Presence, Pulse, Stop, Token, WorkerId
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import marks, micros, moment, text

_SQL = load("heartbeat")


def heartbeat(tx: Tx, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None) -> Pulse:
    upkeep, order = False, b""
    if presence is not None:
        _note_presence(tx, presence)
        (order,) = tx.cur.execute(_SQL["order"], (ORDERS, str(presence.id))).fetchone() or (b"",)
        upkeep = presence.upkeep is not None and _takes_upkeep(tx, presence.upkeep, presence.id, ttl)
    expires_at = tx.now + micros(ttl)
    asked = {token.bytes: token for token in tokens}
    alive: dict[bytes, Token] = {}
    names = list(asked)
    for start in range(0, len(names), 500):
        some = names[start : start + 500]
        statement = _SQL["renew"].replace(":tokens", marks(len(some)))
        alive.update({name: asked[name] for (name,) in tx.cur.execute(statement, (expires_at, *some)).fetchall()})
    stops = [Stop(alive[name], position) for name, position in leases.stops(tx, alive)]
    lost = frozenset(token for name, token in asked.items() if name not in alive)
    return Pulse(lost, tuple(stops), upkeep, moment(tx.now), order)


def _takes_upkeep(tx: Tx, group: str, worker: WorkerId, ttl: timedelta) -> bool:
    tx.cur.execute(_SQL["late"], (tx.now,))
    row = (text(group), worker.bytes, tx.now + micros(ttl), UPKEEP_PLACES)
    return tx.cur.execute(_SQL["upkeep"], row).rowcount == 1


def _note_presence(tx: Tx, presence: Presence) -> None:
    row = (
        presence.id.bytes, text(presence.name), _list(presence.queues), presence.slots, presence.running,
        text(presence.version), micros(presence.started_at), _list(presence.tasks), tx.now, _list(presence.hindered),
        presence.memory,
    )  # fmt: skip
    tx.cur.execute(_SQL["present"], row)
    tx.cur.execute(_SQL["runner"], (presence.id.bytes, text(presence.name), tx.now))


def _list(names: tuple[str, ...]) -> str:
    return msgspec.json.encode([text(name) for name in names]).decode()
