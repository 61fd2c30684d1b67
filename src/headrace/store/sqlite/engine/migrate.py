"""MIGRATE: brings the schema up to date, one numbered file of `schema/` after another."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from headrace.errors import SchemaMismatch
from headrace.model.records import Progress
from headrace.store.sqlite.engine.statements import ROOT, load
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.engine.transaction import Tx

_SQL = load("migrate")
FIRST = "0001_foundation"
"""The step that a file without tables of headrace needs."""


def steps() -> list[tuple[int, str]]:
    """(number, file name) of every step this version knows."""
    names = sorted(entry.name for entry in (ROOT / "schema").iterdir() if entry.name.endswith(".sql"))
    return [(int(name[:4]), name) for name in names]


def version(cur: sqlite3.Cursor) -> int:
    """The version of the schema in the file. 0: there is none."""
    if cur.execute(_SQL["known"]).fetchone() is None:
        return 0
    current: int = cur.execute(_SQL["version"]).fetchone()[0]
    return current


def check(current: int) -> bool:
    """Whether the schema is up to date. A schema that is newer than this version raises."""
    newest = steps()[-1][0]
    if current > newest:
        raise SchemaMismatch(
            f"the database has schema {current}, this version of headrace knows {newest}: update headrace"
        )
    return current == newest


def migrate(tx: Tx, time: Timekeeper, progress: Progress | None = None) -> list[str]:
    """Apply the missing steps inside a write transaction, so a second process finds the work done."""
    cur = tx.cur
    current = version(cur)
    if check(current):
        return []
    cur.execute(_SQL["create"])
    missing = [(number, name) for number, name in steps() if number > current]
    for done, (number, name) in enumerate(missing, start=1):
        for statement in _split((ROOT / "schema" / name).read_text(encoding="utf-8")):
            cur.execute(statement)
        cur.execute(_SQL["taken"], (number, name.removesuffix(".sql"), tx.now))
        if progress is not None:
            progress(done, len(missing), name)
    time.keep(cur)  # without these steps there was no table for it
    return [name.removesuffix(".sql") for _, name in missing]


def _split(script: str) -> Iterator[str]:
    """Statements one by one: `executescript` would commit first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
