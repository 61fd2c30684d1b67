"""The interface of a floor: the raw writes of one engine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import msgspec

from headrace.bench.floor import Floor
from headrace.bench.load import TEXT

PAYLOAD = msgspec.msgpack.encode(([TEXT], {}))


class Rows(Protocol):
    """A connection that writes rows, each call durable when it returns."""

    async def one(self) -> None:
        """Write one job row."""
        ...

    async def jobs(self, count: int, batch: int) -> None:
        """Write `count` job rows, `batch` at a time."""
        ...

    async def done(self, count: int, batch: int) -> None:
        """Read `count` jobs, and write that they have ended, `batch` at a time: as ranges, where the store does."""
        ...


class RawFloor(Floor, Protocol):
    """What an engine does without a queue."""

    def connection(self) -> AbstractAsyncContextManager[Rows]: ...

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Keep a transaction with a snapshot open."""
        ...

    async def spent(self) -> Spent | None:
        """What the server has used. None: there is no server, or this is unknown."""
        ...


class Spent(NamedTuple):
    """What a server has used so far."""

    cpu: float
    """Seconds."""
    memory: int
    """Bytes, right now."""


def sizes(count: int, batch: int) -> list[int]:
    """How many rows each batch has."""
    return [min(batch, count - start) for start in range(0, count, batch)]
