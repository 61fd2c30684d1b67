"""Limits how many queues callers may create, because a store keeps data for every queue and reads cost per queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final

from headrace.app import Headrace
from headrace.model.records import Stats
from headrace.server.auth import Principal
from headrace.server.http.problems import Problem

SETTLED: Final = 10.0
"""Seconds after which a new queue appears in the store's figures."""
ALL_TOGETHER: Final = 10
"""All callers together may create this many times the number of one caller."""


class QueueNames:
    """The queues that the app does not declare, and the tokens that created them, as far as this server knows."""

    def __init__(self, app: Headrace, stats: Callable[[], Awaitable[Stats]], most: int) -> None:
        self._app = app
        self._stats = stats
        self._most = most
        self._known: set[str] = set()
        """Queues that were checked before."""
        self._by_token: dict[str, dict[str, float]] = {}
        """By token: the queues that it created, and when."""

    async def admit(self, principal: Principal, names: Iterable[str]) -> None:
        """Allow enqueueing to these queues. Raises Problem 429 if that creates too many."""
        fresh = {name for name in names if name not in self._known}
        if not fresh:
            return
        declared = self._declared()
        self._known |= fresh & declared
        fresh -= declared
        if fresh:
            self._make(principal.name, fresh, declared, {queue.queue for queue in (await self._stats()).queues})

    def _declared(self) -> set[str]:
        return {*self._app.queues, *(task.options.queue for task in self._app.tasks.values())}

    def _make(self, who: str, fresh: set[str], declared: set[str], stored: set[str]) -> None:
        self._known |= fresh & stored
        new = fresh - stored - self._known
        if not new:
            return
        self._forget(declared | stored)
        mine = self._by_token.setdefault(who, {})
        others = stored.union(*self._by_token.values()) - declared
        if len(mine) + len(new) > self._most or len(others | new) > ALL_TOGETHER * self._most:
            raise Problem(
                429,
                "too_many_queues",
                f"too many queues that the app does not declare: one token may create {self._most:,}; "
                "use existing ones, or declare this one with app.queue(…)",
                headers={"Retry-After": "60"},
            )
        now = monotonic()
        mine.update(dict.fromkeys(new, now))
        self._known |= new

    def _forget(self, there: set[str]) -> None:
        """Forget queues that do not exist, or no longer exist."""
        late = monotonic() - SETTLED
        for who, names in list(self._by_token.items()):
            gone = [name for name, created_at in names.items() if created_at < late and name not in there]
            for name in gone:
                del names[name]
            if not names:
                del self._by_token[who]
        kept = there.union(*self._by_token.values())
        self._known &= kept
