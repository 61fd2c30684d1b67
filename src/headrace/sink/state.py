"""What the store remembers of a sink: how far it got, which process runs it, and its last error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from headrace.model.job import JobId
from headrace.store.contract import Store

KIND: Final = "sink"
"""The kind of the records. The name of a record is the server and the table."""
Place = tuple[datetime, JobId]
"""The position of an end, in the order of `Store.ended`."""
BEGINNING: Final[Place] = (datetime(1970, 1, 1, tzinfo=UTC), JobId(UUID(int=0)))


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one sink."""

    holder: str
    """The process that writes."""
    until: datetime
    """When another process may take over, by the store's clock."""
    at: datetime = BEGINNING[0]
    id: UUID = BEGINNING[1]
    """The table has every end up to this one."""
    rows: int = 0
    """The rows that were written so far. A row that was written twice counts twice."""
    reached: datetime | None = None
    """All ends that the store showed at this time are in the table."""
    error: str = ""
    """Why the last attempt to write failed. Empty: it worked."""

    @property
    def place(self) -> Place:
        return self.at, JobId(self.id)

    def lag(self, now: datetime) -> float:
        """Seconds by which the table is behind the store."""
        return max(0.0, (now - (self.reached or self.at)).total_seconds())


_decode = msgspec.json.Decoder(SinkState).decode
_encode = msgspec.json.Encoder().encode


async def read_states(store: Store) -> dict[str, tuple[int, SinkState | None]]:
    """The version and the state of every sink of this store, by the name of its target. None: it cannot be read."""
    return {name: (record.version, _read(record.value)) for name, record in (await store.records(KIND)).items()}


def _read(value: bytes) -> SinkState | None:
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # The sink then begins again, and the table drops the rows that it has.


async def write_state(store: Store, name: str, state: SinkState, expect: int | None) -> int | None:
    """The new version. None: another process has written meanwhile."""
    return await store.record(KIND, name, _encode(state), expect)
