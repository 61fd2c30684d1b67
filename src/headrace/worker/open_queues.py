"""Claims from open queues only: a store that leaves out the queues that are outside their open hours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, cast

from msgspec.structs import replace

from headrace.model.lease import Ask, Lease, Token
from headrace.policy.queue import QueueOptions
from headrace.store.contract import Prompt, Store

Now = Callable[[], float]


class OpenNow:
    """Which queues are open. It looks at the hours again when the first of them changes."""

    def __init__(self, queues: Mapping[str, QueueOptions], now: Now) -> None:
        """`now`: seconds since 1970 by the store's clock. Read only if a queue has open hours."""
        self._hours = {name: queue.open for name, queue in queues.items() if queue.open is not None}
        self._now = now
        self._closed: frozenset[str] = frozenset()
        self._from = inf
        self._until = -inf

    def only(self, store: Store) -> Store:
        """The store for parts that claim: closed queues have no jobs for them."""
        if not self._hours:
            return store
        # Looked up by name, so that it also works for a wrapped store.
        kind = _OpenQueuesPrompt if hasattr(store, "wait_to_claim") else _OpenQueues
        return cast("Store", kind(store, self))

    def closed(self) -> frozenset[str]:
        if not self._hours:
            return self._closed
        now = self._now()
        # The store's clock may be set back, too.
        if not self._from <= now < self._until:
            at = datetime.fromtimestamp(now, UTC)
            self._closed = frozenset(name for name, hours in self._hours.items() if not hours.is_open(at))
            changes = [hours.next_change(at) for hours in self._hours.values()]
            self._from, self._until = (
                now,
                min((change.timestamp() for change in changes if change is not None), default=inf),
            )
        return self._closed

    def of(self, queues: Sequence[str]) -> tuple[str, ...]:
        closed = self.closed()
        return tuple(name for name in queues if name not in closed)

    def narrowed(self, ask: Ask) -> Ask:
        """The claim without closed queues. Bands that name only closed queues are left out."""
        if not (closed := self.closed()):
            return ask
        bands = [
            replace(band, queues=self.of(band.queues))
            for band in ask.bands
            if not band.queues or not closed.issuperset(band.queues)
        ]
        return replace(ask, queues=self.of(ask.queues), bands=tuple(bands))

    def bounded(self, seconds: float) -> float:
        """At most until a queue opens or closes."""
        self.closed()
        return max(0.0, min(seconds, self._until - self._now()))


class _OpenQueues:
    """`claim` and `wait` without closed queues. Every other verb is the store's own."""

    def __init__(self, store: Store, hours: OpenNow) -> None:
        self._store = store
        self._hours = hours
        self._unsure: Token | None = None
        """The token of a claim whose outcome is unknown. Its repetition must reach the store."""

    async def claim(self, ask: Ask) -> Lease | None:
        narrowed = self._hours.narrowed(ask)
        if not narrowed.queues:
            if ask.token != self._unsure:
                return None
            narrowed = ask
        try:
            lease = await self._store.claim(narrowed)
        except BaseException:
            self._unsure = ask.token
            raise
        self._unsure = None
        return lease

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        seconds = self._hours.bounded(timeout)
        if queues := self._hours.of(queues):
            return await self._store.wait(queues, seconds)
        await asyncio.sleep(seconds)
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _OpenQueuesPrompt(_OpenQueues):
    """For stores that claim for a waiting worker."""

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        seconds = self._hours.bounded(timeout)
        narrowed = self._hours.narrowed(ask)
        if narrowed.queues:
            try:
                return await cast("Prompt", self._store).wait_to_claim(narrowed, seconds)
            except BaseException:
                self._unsure = ask.token
                raise
        await asyncio.sleep(seconds)
        return False
