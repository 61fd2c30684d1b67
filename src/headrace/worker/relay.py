"""RELAY: committed jobs of the app's outbox → the store. Every worker may do it, because each call is stored once."""

from __future__ import annotations

from headrace.outbox import Outbox
from headrace.store.contract import Store
from headrace.worker.service import Service


class RelayService(Service):
    """Empties the outbox while the worker runs."""

    name = "relay"

    def __init__(self, outbox: Outbox, store: Store) -> None:
        super().__init__()
        self._outbox = outbox
        self._store = store

    async def run(self) -> None:
        await self._outbox.run(self._store)
