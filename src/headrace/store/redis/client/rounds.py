"""Calls to queue after queue. On a cluster, the queues of a node that is down are left out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from headrace.errors import StoreError, StoreFull
from headrace.store.redis.client.wire import ONE_NODE, Wire
from headrace.store.redis.keys import Keys


class Round:
    """What is asked of several queues, one by one. On one server the first trouble ends it."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys
        self._down: set[tuple[str, int]] = set()
        self._heard = False
        self._silent: StoreError | None = None

    async def passes_over(self, queue: str) -> bool:
        """Its node is known to be down by now."""
        return bool(self._down) and await self._wire.node_of(self._keys.queue(queue)) in self._down

    @asynccontextmanager
    async def asking(self, queue: str) -> AsyncGenerator[None]:
        """What one queue is asked, whether or not it answers."""
        try:
            yield
        except ONE_NODE as error:
            if not self._keys.clustered:
                raise
            self._silent = error
            if not isinstance(error, StoreFull) and (node := await self._wire.node_of(self._keys.queue(queue))):
                self._down.add(node)
        else:
            self._heard = True

    @property
    def complete(self) -> bool:
        """All queues have answered so far."""
        return self._silent is None

    def end(self, *, needs_all: bool = False) -> None:
        """Raise why a node did not answer, if none did; or if one did not and that matters."""
        if self._silent is not None and (needs_all or not self._heard):
            raise self._silent
