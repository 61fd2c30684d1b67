"""Values on their way into and out of rows: times, texts, and inserts of many rows in few steps.

Python's sqlite3 gives up the interpreter lock at every step of a statement, and `executemany` steps once per row: beside a
thread that computes, each step may cost a switch interval. So many rows travel in one statement, as JSON where they can.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import msgspec

from headrace.store.sqlite.engine.statements import load

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SIZES = (128, 16, 1)
"""Rows per statement. They are few, so that each statement stays in the cache."""

_MARK = re.compile(r"\?")
_encode = msgspec.json.Encoder().encode

Row = tuple[Any, ...]


def micros(value: datetime | timedelta) -> int:
    """Whole microseconds: of a time since 1970, or of a duration."""
    return (value - EPOCH if isinstance(value, datetime) else value) // _MICROSECOND


def moment(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


def maybe_moment(value: int | None) -> datetime | None:
    return None if value is None else EPOCH + timedelta(microseconds=value)


def text(value: str) -> str:
    """What SQLite can hold of a str: its text functions end at NUL, and lone surrogates have no UTF-8."""
    if value.isascii() and "\0" not in value:
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def maybe_text(value: str | None) -> str | None:
    return None if value is None else text(value)


class Bulk:
    """An `insert into … values (…)` that takes any number of rows."""

    def __init__(self, statement: str, *, blobs: bool = False) -> None:
        """`blobs`: some values are bytes, which cannot travel as JSON."""
        head, row = statement.rsplit("values", 1)
        self._by_size = {size: f"{head}values{', '.join([row] * size)}" for size in _SIZES}
        numbers = itertools.count()
        fields = _MARK.sub(lambda _: f"json_extract(value, '$[{next(numbers)}]')", row.strip()[1:-1])
        self._at_once = None if blobs else f"{head}select {fields} from json_each(?)"

    def insert(self, cur: sqlite3.Cursor, rows: Sequence[Row]) -> None:
        if self._at_once is not None and len(rows) >= _SIZES[1]:
            cur.execute(self._at_once, (as_json(rows),))
            return
        start, left = 0, len(rows)
        for size in _SIZES:
            statement = self._by_size[size]
            while left >= size:
                cur.execute(statement, tuple(chain.from_iterable(rows[start : start + size])))
                start, left = start + size, left - size


def as_json(value: Any) -> str:
    return _encode(value).decode()


def marks(count: int) -> str:
    """`?, ?, ?` for an `in (…)`."""
    return ", ".join("?" * count)


INSERT_READY = Bulk(load("enqueue")["ready"])
INSERT_SCHEDULED = Bulk(load("enqueue")["scheduled"])
INSERT_ENDINGS = Bulk(load("settle")["ending"], blobs=True)
INSERT_BLOCKED = Bulk(load("gates")["block"])
