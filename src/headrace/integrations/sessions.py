"""Jobs that wait for a SQLAlchemy session to commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from headrace.errors import HeadraceError, Unavailable
from headrace.store.tx import ends_with

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.task.call import JobCall

log = logging.getLogger("headrace.integrations")

PATIENCE = 5.0
"""Seconds after a commit in which a store that cannot be reached may come back."""
PAUSE = 0.1

_KEY = "headrace"


class Waiting:
    """The jobs of one session for one app."""

    def __init__(self, session: Session, app: Headrace) -> None:
        self._app = app
        self._session = session
        self._calls: list[tuple[SessionTransaction | None, JobCall[Any]]] = []
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_soft_rollback", self._rolled_back)

    def extend(self, calls: Iterable[JobCall[Any]]) -> None:
        """Enqueue these, too."""
        inside = self._session.get_nested_transaction() or self._session.get_transaction()
        self._calls += [(inside, call) for call in calls]

    def _committed(self, session: Session) -> None:
        if session.in_nested_transaction() or not self._calls:
            return  # The end of a savepoint is not a commit.
        calls, self._calls = self._calls, []
        self._enqueue([call for _, call in calls])

    def _enqueue(self, calls: Sequence[JobCall[Any]]) -> None:
        """The rows are committed, so an error here must not reach the caller, which would think the commit failed."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                self._app.enqueue_many(calls)
            except Unavailable as error:
                if time.monotonic() < give_up:
                    time.sleep(PAUSE)  # The store could not be reached. The client repeats a call that has reached it.
                    continue
                _lost(calls, error)
            except HeadraceError as error:
                _lost(calls, error)
            return

    def _rolled_back(self, session: Session, previous: SessionTransaction) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        self._calls = [(inside, call) for inside, call in self._calls if not ends_with(inside, previous)]


def _lost(calls: Sequence[JobCall[Any]], error: HeadraceError) -> None:
    tasks = ", ".join(sorted({call.job.task for call in calls}))
    log.error("committed, but its %d jobs (%s) were not enqueued: %s", len(calls), tasks, error)


def waiting_for(session: Any, app: Headrace) -> Waiting:
    """The waiting jobs of a session (or of the current session of a `scoped_session`)."""
    current: Session = session if isinstance(session, Session) else session()
    lists: dict[int, Waiting] = current.info.setdefault(_KEY, {})
    if id(app) not in lists:
        lists[id(app)] = Waiting(current, app)
    return lists[id(app)]
