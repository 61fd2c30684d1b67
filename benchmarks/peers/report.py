"""The result of a race as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.peers.contestants import Contestant
from benchmarks.peers.race import Samples
from headrace.bench.result import median, percentile, rounded


class Line(msgspec.Struct, kw_only=True):
    """One contestant on one store."""

    store: str
    contestant: str
    how: str
    version: str
    single_p50_ms: float | None = None
    single_p99_ms: float | None = None
    paced_p50_ms: float | None = None
    paced_p99_ms: float | None = None
    pickup_p50_ms: float | None = None
    pickup_p99_ms: float | None = None
    payload_per_s: float | None = None
    import_cpu_ms: float | None = None
    given_up: str | None = None


def line(store: str, contestant: Contestant, version: str, samples: Samples) -> Line:
    """Percentiles over all rounds; medians of what a round gives once."""
    found = Line(
        store=store, contestant=contestant.name, how=contestant.how, version=version, given_up=samples.given_up
    )
    found.single_p50_ms, found.single_p99_ms = _both(samples.single)
    found.paced_p50_ms, found.paced_p99_ms = _both(samples.paced)
    found.pickup_p50_ms, found.pickup_p99_ms = _both(samples.pickup)
    found.payload_per_s = rounded(median(samples.payload), 0)
    found.import_cpu_ms = rounded(median(samples.imports), 1)
    return found


def _both(ms: Sequence[float]) -> tuple[float | None, float | None]:
    return rounded(percentile(ms, 0.5)), rounded(percentile(ms, 0.99))


HEADINGS = (
    "",
    "producer",
    "single p50 / p99, ms",
    "500/s p50 / p99, ms",
    "pickup p50 / p99, ms",
    "100 KB, jobs/s",
    "import, ms CPU",
)


def table(lines: Sequence[Line]) -> str:
    """In Markdown."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_row, lines)]
    said = [f"{each.contestant} left the race: {each.given_up}" for each in lines if each.given_up]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), *said])


def _row(each: Line) -> tuple[str, ...]:
    return (
        f"{each.contestant} ({each.version})" if each.version else each.contestant,
        each.how,
        _pair(each.single_p50_ms, each.single_p99_ms),
        _pair(each.paced_p50_ms, each.paced_p99_ms),
        _pair(each.pickup_p50_ms, each.pickup_p99_ms),
        "–" if each.payload_per_s is None else f"{each.payload_per_s:,.0f}",
        "–" if each.import_cpu_ms is None else f"{each.import_cpu_ms:.0f}",
    )


def _pair(first: float | None, second: float | None) -> str:
    return "–" if first is None or second is None else f"{first:.2f} / {second:.2f}"


def as_json(lines: Sequence[Line], about: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode({**about, "lines": lines}), indent=2).decode()
