"""Calls a function when the transaction behind a `tx=` is committed, as far as its library tells.

Django and SQLAlchemy tell. A connection of another library does not, so its jobs are stored at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import BadTransaction
from headrace.store.tx import Kind, Standing, django_connection, django_standing, ends_with, kind_of, named


def after_commit(tx: object, call: Callable[[], None]) -> None:
    """Call it after the commit, and never after a rollback. Raises BadTransaction as the SQL stores do."""
    kind = kind_of(tx)
    if kind is None:
        raise BadTransaction(f"tx = {named(tx)} is not supported")
    if kind is Kind.DJANGO:
        _after_django(tx, call)
    elif kind in {Kind.ALCHEMY, Kind.ASYNC_ALCHEMY}:
        _after_alchemy(tx, call)
    else:
        call()


def _after_django(tx: object, call: Callable[[], None]) -> None:
    try:
        wrapper = django_connection(tx)
    except LookupError as error:
        raise BadTransaction(f"tx = {tx!r}: {error}") from None
    match django_standing(wrapper):
        case Standing.NONE:
            raise BadTransaction("this connection is not in a transaction: use it inside `with transaction.atomic():`")
        case Standing.FAILED:
            raise BadTransaction("this transaction has failed already: roll it back first")
        case _:
            wrapper.on_commit(call)


def _after_alchemy(tx: Any, call: Callable[[], None]) -> None:
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    source: Any = getattr(tx, "sync_session", None) or getattr(tx, "sync_connection", None) or tx
    if callable(getattr(source, "registry", None)):
        source = source()  # a scoped_session
    is_session = isinstance(source, Session)
    if is_session and not source.in_transaction():
        source.begin()  # The first statement of a real store begins it, too.
    inside: Any = (source.get_nested_transaction() or source.get_transaction()) if is_session else None
    # A listener cannot be removed while it is called, so it remembers that it has nothing more to do.
    over = False

    def committed(*_: object) -> None:
        nonlocal over
        if over or (is_session and source.in_nested_transaction()):
            return  # The end of a savepoint is not a commit.
        over = True
        call()

    def rolled_back(_: object, previous: Any = None) -> None:
        nonlocal over
        over = over or ends_with(inside, previous)

    event.listen(source, "after_commit" if is_session else "commit", committed)
    event.listen(source, "after_soft_rollback" if is_session else "rollback", rolled_back)
