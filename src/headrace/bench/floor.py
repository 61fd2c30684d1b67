"""What a run may measure beside a store. The installed package measures the store alone; `benchmarks/` adds the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.bench.result import Measurement
    from headrace.bench.workloads import Workloads

Group = Callable[["Workloads"], AsyncIterator["Measurement"]]


class Floor(Protocol):
    """What an engine does without a queue. The `floor_` roles of a member write its rows."""

    async def prepare(self) -> None:
        """Make the tables, empty."""
        ...

    async def drop(self) -> None: ...

    async def wal(self) -> int | None:
        """Bytes of write-ahead log ever written; None: not told."""
        ...

    async def stored(self) -> int:
        """Bytes that the tables or keys of the store take now."""
        ...

    async def calls(self) -> int | None:
        """Transactions or commands that the server has served; None: there is no server."""
        ...


def _no_floor(engine: str, url: str) -> Floor | None:
    del engine, url
    return None


@dataclass(frozen=True, slots=True)
class Beside:
    """The hook for further measurements: floors, more workloads, and a member that knows their roles."""

    member: str = "headrace.bench.member"
    """The module that every process of a run starts."""
    floor: Callable[[str, str], Floor | None] = _no_floor
    """The floor by engine and URL; None: the engine has none."""
    groups: tuple[Group, ...] = ()
    """Workloads after the usual ones, each group on a fresh store."""
    workloads: tuple[str, ...] = ()
    """The names of those workloads, for the progress bar."""
    traces: bool = False
    """Whether the member can trace with OpenTelemetry."""


NOTHING = Beside()
