"""Signal an event, and look at one: what a person does who answers a task that waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from headrace.errors import SerializationError
from headrace.model.gate import Gate
from headrace.operate.audit import Ledger
from headrace.store.contract import Store
from headrace.task.event import Event, encoded_untyped, event_gate

KEPT = timedelta(days=30)
"""How long the store remembers a value that no job waits for any more."""

_decode = msgspec.msgpack.Decoder().decode


class EventOperations:
    """Events of one store."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def signal(
        self,
        name: str,
        key: str,
        value: Any = None,
        *,
        tenant: str = "",
        queue: str | None = None,
        declared: Event[Any] | None = None,
    ) -> bool:
        """Give a value to the jobs that wait for this event, and to those that will. False: there was one already.

        `declared`: the event as an app declares it. Its type decides which values are accepted. Raises SerializationError.
        """
        if declared is None:
            data, home, keep = encoded_untyped(value), "default", KEPT
        else:
            data, home, keep = declared.encoded_json(value), declared.queue, declared.keep
        gate = event_gate(name, key, queue=home if queue is None else queue, tenant=tenant)
        first = await self._store.signal(gate, data, keep)
        if first:
            await self._ledger.note("events.signal", f"{name} of {key}")
        return first

    async def show(self, name: str, key: str, *, tenant: str = "") -> Gate | None:
        """The event as the store has it. None: it was not signalled, and nothing waits for it."""
        [gate] = await self._store.gates([event_gate(name, key, tenant=tenant).id])
        return gate


def shown_value(gate: Gate) -> Any:
    """The value of a signal as it can be shown."""
    if gate.value is None:
        return None
    try:
        return _decode(gate.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SerializationError("value", str(error)) from None
