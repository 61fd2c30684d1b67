"""The wait and run times of a worker since its start, by queue and task, in the few buckets of `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headrace.model.histogram import Histogram
from headrace.model.rollup import OTHER_TASKS
from headrace.supervisor.series import ENDS_AT, MOST_PAIRS, RUN, WAIT, Series

NO_COUNTS: Final = (0,) * (len(ENDS_AT) + 1)


class Durations(NamedTuple):
    """Durations in few buckets."""

    sum: float = 0.0
    counts: tuple[int, ...] = NO_COUNTS

    @classmethod
    def of(cls, histogram: Histogram) -> Durations:
        """The same durations in fewer buckets."""
        return cls(histogram.total, tuple(histogram.coarse(ENDS_AT)))

    @property
    def size(self) -> int:
        """How many durations there are."""
        return sum(self.counts)

    def plus(self, more: Durations) -> Durations:
        """Both together."""
        return Durations(self.sum + more.sum, tuple(map(int.__add__, self.counts, more.counts)))

    def spread(self, size: int) -> Durations:
        """As many durations as `size` says, of which these are a sample. Without a sample they are the shortest."""
        whole = self.size
        if not whole:
            return Durations(0.0, (size, *NO_COUNTS[1:]))
        counts: list[int] = []
        before = passed = 0
        for count in self.counts:
            # Sums are rounded and not single counts, so that all of them together are exact.
            passed += count
            upto = round(size * passed / whole)
            counts.append(upto - before)
            before = upto
        return Durations(self.sum * size / whole, tuple(counts))


class AttemptTimes:
    """Only grows, as Prometheus expects it. The number of series has a bound."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], tuple[Durations, Durations]] = {}
        """(queue, task) → waits and runs."""

    def add(self, queue: str, task: str, wait: Histogram, run: Histogram, ran: int | None = None) -> None:
        """Add attempts. `ran`: how many there were, if the histograms hold only a sample of them."""
        key = queue, task
        if key not in self._pairs and len(self._pairs) >= MOST_PAIRS:
            key = queue, OTHER_TASKS
        waits, runs = self._pairs.get(key, (Durations(), Durations()))
        more_waits, more_runs = Durations.of(wait), Durations.of(run)
        if ran is not None and ran != more_runs.size:
            if not more_runs.size:
                # None of these attempts was measured. They are taken to be like those before them.
                more_waits, more_runs = waits, runs
            first = ran * more_waits.size / more_runs.size if more_runs.size else ran
            more_waits, more_runs = more_waits.spread(round(first)), more_runs.spread(ran)
        self._pairs[key] = waits.plus(more_waits), runs.plus(more_runs)

    def series(self, wait: int = WAIT, run: int = RUN) -> Iterator[Series]:
        """All series, of the families at these places."""
        for key, (waits, runs) in self._pairs.items():
            yield Series(wait, key, waits.sum, waits.counts)
            yield Series(run, key, runs.sum, runs.counts)
