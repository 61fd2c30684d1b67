"""RECORDS and RECORD: small named values, changed by compare-and-set."""

from __future__ import annotations

from headrace.model.records import Record
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx

_SQL = load("record")


def records(tx: Tx, kind: str) -> dict[str, Record]:
    return {name: Record(version, value) for name, version, value in tx.cur.execute(_SQL["all"], (kind,)).fetchall()}


def record(tx: Tx, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
    row = tx.cur.execute(_SQL["version"], (kind, name)).fetchone()
    version = None if row is None else row[0]
    if version != expect:
        return None
    if version is not None:
        tx.cur.execute(_SQL["delete"], (version,))
    if value is None:
        return 0
    return tx.cur.execute(_SQL["insert"], (kind, name, value)).lastrowid
