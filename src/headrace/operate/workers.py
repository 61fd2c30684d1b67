"""Quiet, resume and drain one worker. A record of the store carries the order, and the worker's next heartbeat reads it."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from headrace.model.lease import ORDERS, Presence, WorkerId, WorkerOrder
from headrace.operate.audit import Ledger
from headrace.store.contract import Store

OrderVerb = Literal["quiet", "resume", "drain"]
_FORGOTTEN = timedelta(hours=1)
"""How long the order to a worker that has gone is kept. A worker may be away for a while and come back."""


class WorkerOperations:
    """Orders to the workers of one store."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def order(self, id: WorkerId, verb: OrderVerb) -> Presence | None:
        """Give the order; None: no such worker was seen within the last minute. A drain cannot be taken back.

        `quiet`: it claims nothing, finishes what runs, and stays. `resume` ends that. `drain`: it finishes what runs, and
        ends. The worker obeys with its next heartbeat.
        """
        workers = {worker.id: worker for worker in await self._store.workers()}
        worker = workers.get(id)
        if worker is None:
            return None
        now = await self._store.now()
        value = None if verb == "resume" else msgspec.json.encode(WorkerOrder(verb, self._ledger.actor, now))
        name = str(id)
        while True:
            records = await self._store.records(ORDERS)
            known = records.get(name)
            before = None if known is None else read(known.value)
            if before is not None and before.kind == "drain":
                break  # The worker may be leaving already.
            written = await self._store.record(ORDERS, name, value, None if known is None else known.version)
            if written is not None:
                await self._ledger.note(f"workers.{verb}", worker.name)
                break
        for other, record in records.items():
            order = read(record.value)
            if other not in {str(worker) for worker in workers} and (order is None or now - order.at > _FORGOTTEN):
                await self._store.record(ORDERS, other, None, record.version)
        return worker


async def orders_of(store: Store) -> dict[str, WorkerOrder]:
    """The orders that stand, by the id of the worker."""
    records = await store.records(ORDERS)
    return {name: order for name, record in records.items() if (order := read(record.value)) is not None}


def read(value: bytes) -> WorkerOrder | None:
    """An order as it is stored; None: it cannot be read."""
    try:
        return msgspec.json.decode(value, type=WorkerOrder)
    except msgspec.DecodeError:
        return None
