"""What work that spans jobs may cost, by store, and whether a measurement kept to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from headrace.bench.result import Measurement


class FigureTarget(NamedTuple):
    """One bound of one figure."""

    figure: Literal["ratio", "p50_ms", "more_p50_ms", "more_p99_ms"]
    at_least: bool
    bound: float

    @property
    def words(self) -> str:
        sign = "≥" if self.at_least else "≤"
        match self.figure:
            case "ratio":
                return f"{sign} {self.bound:g}" if self.at_least else f"{sign} {self.bound:g}×"
            case "p50_ms":
                return f"{sign} {self.bound:g} ms"
            case "more_p50_ms":
                return f"p50 {sign} + {self.bound:g} ms"
            case "more_p99_ms":
                return f"p99 {sign} + {self.bound:g} ms"

    def met(self, measurement: Measurement) -> bool | None:
        """None: the figure is not known."""
        value: float | None = getattr(measurement, self.figure)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound


def _at_least(bound: float) -> tuple[FigureTarget, ...]:
    return (FigureTarget("ratio", True, bound),)


def _at_most(bound: float) -> tuple[FigureTarget, ...]:
    return (FigureTarget("ratio", False, bound),)


def _join(p50: float, p99: float) -> tuple[FigureTarget, ...]:
    return (FigureTarget("more_p50_ms", False, p50), FigureTarget("more_p99_ms", False, p99))


_ALL: Mapping[str, tuple[FigureTarget, ...]] = {
    "ordinary_together": _at_least(0.97),
    "ordinary_drain_1": _at_least(0.97),
    "ordinary_pickup": _at_most(1.03),
    "fanout_1m": (FigureTarget("p50_ms", False, 100),),
    "fanout_drain": _at_least(0.95),
    "group_1m": _at_least(0.95),
    "group_singles": _at_least(0.9),
    "chains": _at_least(0.7),
    "chain_1": _at_most(1.5),
    "join": _join(1, 25),
    "step_1": _at_most(1.2),
    "steps_100": _at_least(0.5),
    "suspended_idle": _at_most(1.05),
    "suspended_signal": _at_most(2),
    "bytes_blocked": _at_most(1),
    "bytes_link": _at_most(2.5),
}
TARGETS: Mapping[str, Mapping[str, tuple[FigureTarget, ...]]] = {
    "sqlite": _ALL,
    "postgres": {**_ALL, "group_singles": _at_least(0.85)},
    "redis": {
        **_ALL,
        "fanout_1m": (FigureTarget("p50_ms", False, 2),),
        "chains": _at_least(0.6),
        "join": _join(0.3, 5),
        "bytes_link": _at_most(3.5),
    },
}
"""By store and workload. The memory store has none."""


def judge(measurement: Measurement) -> None:
    """Note the target of a measurement, and whether it was met."""
    targets = TARGETS.get(measurement.store, {}).get(measurement.workload, ())
    if not targets:
        return
    measurement.target = ", ".join(target.words for target in targets)
    answers = [target.met(measurement) for target in targets]
    measurement.met = None if None in answers else all(answers)
