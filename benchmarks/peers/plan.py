"""How much a race measures, and what it finds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plan:
    """How much each turn measures."""

    rounds: int = 3
    singles: int = 200
    pickups: int = 50
    paced: int = 500
    rate: float = 500.0
    scripts: int = 5
    idle: float = 10.0
    """Seconds for which an idle worker is watched."""
    busy: float = 0.5
    """Seconds that a backlog takes, about: its jobs are as many as the contestant can enqueue or run in that time."""
    bytes: int = 64_000_000
    """The most bytes of a backlog."""
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Bytes of the payloads."""


@dataclass(slots=True)
class Samples:
    """What the turns of one contestant gave, by the name of the figure."""

    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict[str, list[float]](list))
    given_up: str | None = None
