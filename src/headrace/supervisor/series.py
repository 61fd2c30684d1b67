"""Series with labels and histograms: as they lie on the shared page, how they add up, and how `/metrics` writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

ENDS_AT = (73, 90, 97, 107, 114, 121, 131, 138, 145, 155, 162, 169, 181, 188, 205, 223, 231, 250)
"""The buckets of `model.histogram` with which a bucket of Prometheus ends: near 1 ms, 5 ms, 10 ms and so on up to 6 h."""
SECONDS = tuple(float(f"{1e-6 * 1.1**index:.3g}") for index in ENDS_AT)
"""Their ends in seconds, with three figures."""
CALL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The same for calls of the store, which are measured one by one."""
MOST_PAIRS = 100
"""Pairs of queue and task with series of their own. Further tasks of a queue share one, so that labels stay few."""
OTHERS = "*"
"""The task label of that series. No task can have this name."""
MOST_LIMITS = 50
"""Limits with series of their own. Further ones have none."""


class Family(NamedTuple):
    """One metric with labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    """The upper ends of its buckets. Empty: it is a gauge."""


WAIT, RUN, CALLS, LIMIT_UNITS = range(4)
"""What a worker process measures: the place of each family in FAMILIES."""
FAMILIES = (
    Family(
        "headrace_worker_wait_seconds",
        "Time between the enqueue of a job and the start of its first attempt.",
        ("queue", "task"),
        SECONDS,
    ),
    Family("headrace_worker_run_seconds", "Time that attempts ran.", ("queue", "task"), SECONDS),
    Family("headrace_worker_store_call_seconds", "Time that calls of the store took.", ("call",), CALL_SECONDS),
    Family("headrace_worker_limit_units", "Units of a limit that jobs of these workers hold.", ("limit",), ()),
)


class Series(NamedTuple):
    """One combination of labels: of a histogram the sum and the counts by bucket, of a gauge its value as the sum."""

    family: int
    labels: tuple[str, ...]
    sum: float
    counts: tuple[int, ...] = ()
    """Not cumulative. The last one is for what is longer than every bound."""


# ── on the page ─────────────────────────────────────────────────────────────
_ROW = struct.Struct("=BBHd")
"""Family, number of counts, bytes of the labels, sum. The labels and the counts follow."""
_COUNT = 8
_END = "\0"
MAX_ROW = _ROW.size + 63 + 128 + 2 + _COUNT * (len(SECONDS) + 1)
"""Bytes of one series with the longest names of a queue and a task."""
AREA_SIZE = MAX_ROW * (2 * (MOST_PAIRS + 1) + 16 + MOST_LIMITS)
"""Bytes that all series of one process take, at most."""


def pack_series(series: Iterable[Series]) -> bytes:
    """As bytes for the page. What does not fit is left out."""
    packed = bytearray()
    for one in series:
        labels = _END.join(one.labels).encode()
        row = _ROW.pack(one.family, len(one.counts), len(labels), one.sum)
        row += labels + struct.pack(f"={len(one.counts)}Q", *one.counts)
        if len(packed) + len(row) > AREA_SIZE:
            break
        packed += row
    return bytes(packed)


def read_series(data: bytes) -> Iterator[Series]:
    """What `pack_series` wrote."""
    at = 0
    while at < len(data):
        family, counts, size, total = _ROW.unpack_from(data, at)
        at += _ROW.size
        labels = tuple(data[at : at + size].decode().split(_END))
        at += size
        yield Series(family, labels, total, struct.unpack_from(f"={counts}Q", data, at))
        at += _COUNT * counts


# ── sums ────────────────────────────────────────────────────────────────────
class SeriesSum:
    """Adds up the series of several processes, by family and labels."""

    def __init__(self, sums: Mapping[tuple[int, tuple[str, ...]], Series] | None = None) -> None:
        self._sums = dict(sums or {})

    def copy(self) -> SeriesSum:
        """The same sums, to which more can be added."""
        return SeriesSum(self._sums)

    def add(self, series: Iterable[Series], *, gauges: bool = True) -> None:
        """Add these. `gauges=False`: only what has counts, because the process of the others has ended."""
        sums = self._sums
        for one in series:
            if not gauges and not one.counts:
                continue
            key = one.family, one.labels
            if key not in sums and len(one.labels) == 2 and len(sums) >= 4 * MOST_PAIRS:
                key = one.family, (one.labels[0], OTHERS)
            known = sums.get(key)
            sums[key] = Series(*key, one.sum, one.counts) if known is None else _added(known, one)

    def of(self, family: int) -> list[Series]:
        """The series of one family, by their labels."""
        return sorted(one for one in self._sums.values() if one.family == family)


def _added(known: Series, more: Series) -> Series:
    counts = tuple(map(int.__add__, known.counts, more.counts))
    return Series(known.family, known.labels, known.sum + more.sum, counts)


# ── as text ─────────────────────────────────────────────────────────────────
def family_lines(family: Family, series: Sequence[Series]) -> Iterator[str]:
    """One family in the text format of Prometheus. No name of a queue, task, call or limit needs escaping."""
    yield f"# HELP {family.name} {family.text}"
    yield f"# TYPE {family.name} {'histogram' if family.bounds else 'gauge'}"
    for one in series:
        labels = ",".join(f'{name}="{value}"' for name, value in zip(family.labels, one.labels, strict=True))
        if not family.bounds:
            yield f"{family.name}{{{labels}}} {one.sum:.15g}"
            continue
        total = 0
        for bound, count in zip((*family.bounds, "+Inf"), one.counts, strict=True):
            total += count
            le = bound if isinstance(bound, str) else f"{bound:g}"
            yield f'{family.name}_bucket{{{labels},le="{le}"}} {total}'
        yield f"{family.name}_sum{{{labels}}} {one.sum:.9g}"
        yield f"{family.name}_count{{{labels}}} {total}"
