"""LIMITS and LIMIT: the rules of limit keys, changed by compare-and-set."""

from __future__ import annotations

from headrace.model.records import LimitRule
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.engine.wakeup import ALL
from headrace.store.sqlite.rows import maybe_moment, micros

_SQL = load("limit")


def limits(tx: Tx) -> dict[str, LimitRule]:
    return {
        name: LimitRule(
            concurrency=concurrency,
            rate=rate,
            burst=burst,
            closed_until=maybe_moment(closed_until),
            state=state,
            version=version,
        )
        for name, version, concurrency, rate, burst, closed_until, state in tx.cur.execute(_SQL["all"]).fetchall()
    }


def limit(tx: Tx, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
    row = tx.cur.execute(_SQL["version"], (name,)).fetchone()
    version = None if row is None else row[0]
    if version != expect:
        return None
    tx.depth.awake.add(ALL)
    if version is not None:
        tx.cur.execute(_SQL["delete"], (version,))
    if rule is None:
        tx.cur.execute(_SQL["grow"])
        return 0
    closed_until = None if rule.closed_until is None else micros(rule.closed_until)
    values = (name, rule.concurrency, rule.rate, rule.burst, closed_until, rule.state)
    return tx.cur.execute(_SQL["insert"], values).lastrowid
