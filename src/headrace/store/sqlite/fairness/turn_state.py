"""The turns of queues, of tenants of a line, and of lanes of a tenant. Each store object remembers its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LOWEST_LANE = -(1 << 63)
_MANY_LINES = 10_000
_MANY_TENANTS = 10_000


@dataclass(slots=True)
class Turn:
    """The tenant or lane that was served last, and what is still owed to it because a full claim cut its turn short."""

    last: str | int | None = None
    owed: int = 0


@dataclass(slots=True)
class LineTurns:
    """The turns of one queue and priority."""

    tenants: Turn = field(default_factory=Turn)
    lanes: dict[str, Turn] = field(default_factory=dict[str, Turn])
    """Of tenants that have several lanes."""
    scattered: bool = False
    """The last claim found tenants with a few ranges each."""
    length: float = 1.0
    """Jobs in a range, as the last claim found them: tells how many ranges make a turn."""

    def of_lanes(self, tenant: str) -> Turn:
        turn = self.lanes.pop(tenant, None) or Turn()
        if len(self.lanes) >= _MANY_TENANTS:
            # The tenant that was served longest ago begins with its first lane again.
            del self.lanes[next(iter(self.lanes))]
        self.lanes[tenant] = turn
        return turn


class TurnState:
    """Turns are fair among the claims of one store object, and so, with many jobs, over all of them."""

    def __init__(self) -> None:
        self._clock = 0
        self._served: dict[str, int] = {}
        self._lines: dict[tuple[str, int], LineTurns] = {}

    def order(self, queues: list[str]) -> list[str]:
        """The queue that was served longest ago comes first."""
        return sorted(queues, key=lambda queue: self._served.get(queue, 0))

    def served(self, queue: str) -> None:
        self._clock += 1
        self._served[queue] = self._clock

    def line(self, queue: str, priority: int) -> LineTurns:
        if (line := self._lines.get((queue, priority))) is None:
            if len(self._lines) >= _MANY_LINES:
                self._lines.clear()
            line = self._lines[queue, priority] = LineTurns()
        return line


def quotas(weights: list[int], wanted: int) -> Iterator[tuple[int, int]]:
    """What each one gets of `wanted` jobs, from the first one's turn on, and what is then still owed to it.

    All get as many whole rounds as fit. The rest goes to the first ones, and the last of these may get a part of a turn.
    Owed is 0 if a turn is over, and -1 for those behind the last turn that was begun.
    """
    rounds, rest = divmod(wanted, sum(weights))
    whole = not rest
    for weight in weights:
        more = min(weight, rest)
        rest -= more
        if whole or more:
            yield rounds * weight + more, weight - more if more else 0
        elif rounds:
            yield rounds * weight, -1
        else:
            return
