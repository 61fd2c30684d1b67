"""Tidy: everything that was appended, enqueued jobs and ends, is in the tables that it belongs to."""

from __future__ import annotations

from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.thread import Call
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.inbox import fold
from headrace.store.sqlite.unsorted import sort_in

_SQL = load("tidy")


class Untidy(Exception):
    """A look meets what is not in its table yet."""


def is_tidy(tx: Tx) -> bool:
    """Whether there is nothing to move."""
    return not tx.cur.execute(_SQL["untidy"]).fetchone()[0]


def check_tidy(tx: Tx) -> Tx:
    if not is_tidy(tx):
        raise Untidy
    return tx


def tidy(tx: Tx) -> None:
    """Move what was appended."""
    fold(tx)
    sort_in(tx)


def tidying() -> Call:
    """`tidy` as a call of the writer, which takes no lock if there is nothing to move."""
    return Call(tidy, None, look=lambda tx: is_tidy(tx) or None)
