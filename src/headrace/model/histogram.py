"""Histograms of durations that can be merged: every percentile is within 5 % of the exact one, whatever was merged."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import ceil
from typing import Final, Self

import msgspec

SHORTEST: Final = 1e-6
"""Seconds. A shorter duration counts as this one."""
GROWTH: Final = 1.1
"""How many times longer the longest duration of a bucket is than the shortest one."""
_BUCKETS: Final = 360
"""The last one begins after 22 years. A longer duration counts in it."""
_ENDS: Final = [SHORTEST * GROWTH**index for index in range(_BUCKETS)]
"""The longest duration of each bucket, by its index."""
_MIDDLES: Final = [end / GROWTH**0.5 for end in _ENDS]
"""What stands for the durations of a bucket. Both of its ends are within 4.9 % of it."""
MAX_PACKED: Final = 4 + _BUCKETS * 10
"""Bytes of a packed histogram, at most, with counts of up to 64 bits."""
_FORMAT: Final = b"\x01"
"""The first byte of a packed histogram. MessagePack follows. Another set of buckets takes another byte."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


class Histogram:
    """Counts of durations in buckets of growing length. Only buckets that hold something take memory."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]  # a histogram changes

    @property
    def count(self) -> int:
        """How many durations it holds."""
        return sum(self._counts.values())

    @property
    def mean(self) -> float | None:
        """The mean of the durations in seconds, within 5 %; None: it is empty."""
        count = self.count
        return self.total / count if count else None

    @property
    def total(self) -> float:
        """The sum of the durations in seconds, within 5 %."""
        return float(sum(_MIDDLES[index] * number for index, number in self._counts.items()))

    def add(self, seconds: Iterable[float], weight: int = 1) -> None:
        """Add durations, each as often as `weight` says."""
        values = sorted(seconds)
        counts, start, size = self._counts, 0, len(values)
        # Sorted values fill few buckets, so that the cost for each value is that of the sort.
        while start < size:
            index = min(bisect_left(_ENDS, values[start]), _BUCKETS - 1)
            end = size if index == _BUCKETS - 1 else bisect_right(values, _ENDS[index], start)
            counts[index] = counts.get(index, 0) + (end - start) * weight
            start = end

    def merge(self, other: Histogram) -> None:
        """Add everything that the other one holds."""
        counts = self._counts
        if not counts:
            counts.update(other._counts)
            return
        for index, count in other._counts.items():
            counts[index] = counts.get(index, 0) + count

    def coarse(self, ends: Sequence[int]) -> list[int]:
        """Counts by larger buckets, which end with the buckets of these indexes. The last count is for what is longer."""
        counts = [0] * (len(ends) + 1)
        for index, count in self._counts.items():
            counts[bisect_left(ends, index)] += count
        return counts

    def percentile(self, share: float) -> float | None:
        """The duration in seconds that this share (0.99: 99 %) of the durations does not exceed; None: it is empty."""
        return self.percentiles((share,))[0]

    def percentiles(self, shares: Sequence[float]) -> list[float | None]:
        """The percentiles of these shares. One pass computes all of them."""
        if not self._counts:
            return [None] * len(shares)
        indices = sorted(self._counts)
        ranks = list(accumulate([self._counts[index] for index in indices]))
        places = [bisect_left(ranks, max(1, ceil(share * ranks[-1]))) for share in shares]
        return [_MIDDLES[indices[place]] if indices[place] else SHORTEST for place in places]

    def pack(self) -> bytes:
        """As bytes: for each bucket that holds something, the distance from the bucket before it, and the count."""
        numbers: list[int] = []
        last = 0
        for index, count in sorted(self._counts.items()):
            numbers += (index - last, count)
            last = index
        return _FORMAT + _encode(numbers)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The histogram of these bytes. Raises ValueError if they are none."""
        histogram = cls()
        histogram._counts = dict(_buckets(packed))
        return histogram

    def merge_packed(self, packed: bytes) -> None:
        """Add everything that a packed one holds. Raises ValueError, and adds nothing, if these bytes are none."""
        counts = self._counts
        if not counts:
            counts.update(_buckets(packed))  # Runs in C: most histograms of a chart are the first of their step.
            return
        get = counts.get
        for index, count in _buckets(packed):
            counts[index] = get(index, 0) + count


EMPTY: Final = Histogram().pack()
"""A packed histogram without durations."""


def _buckets(packed: bytes) -> Iterator[tuple[int, int]]:
    """Index and count of each bucket. Nearly all of it runs in C, because a chart merges thousands of histograms."""
    if packed[:1] != _FORMAT:
        raise ValueError("these bytes are no histogram of a known format")
    try:
        numbers = _decode(packed[1:])
    except msgspec.DecodeError:
        raise ValueError("the bytes of a histogram are damaged") from None
    if not numbers:
        return iter(())
    gaps, counts = numbers[::2], numbers[1::2]
    if len(gaps) != len(counts) or sum(gaps) >= _BUCKETS or min(gaps) < 0 or 0 in gaps[1:] or min(counts) < 1:
        raise ValueError("a histogram has a bucket that does not exist, is empty, or comes twice")
    return zip(accumulate(gaps), counts, strict=True)
