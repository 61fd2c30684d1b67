"""RELAY: jobs that were committed into the app's outbox → the store. Every worker may do it: a call is stored once."""

from __future__ import annotations

from headrace.outbox import Outbox
from headrace.store.contract import Store
from headrace.worker.service import Service


class RelayService(Service):
    """Empties the outbox for as long as the worker runs."""

    name = "relay"

    def __init__(self, outbox: Outbox, store: Store) -> None:
        super().__init__()
        self._outbox = outbox
        self._store = store

    async def run(self) -> None:
        await self._outbox.run(self._store)
