"""Histograms: percentiles within 5 % of the exact ones, merged in any order, packed and unpacked without loss."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.histogram import EMPTY, MAX_PACKED, SHORTEST, Histogram

SECONDS = st.floats(min_value=SHORTEST, max_value=1e8)
MANY = st.lists(SECONDS, min_size=1, max_size=200)


def histogram_of(values: list[float], weight: int = 1) -> Histogram:
    histogram = Histogram()
    histogram.add(values, weight)
    return histogram


def exact(values: list[float], share: float) -> float:
    return sorted(values)[max(1, ceil(share * len(values))) - 1]


@given(MANY, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_percentiles_are_within_5_percent_of_the_exact_ones(values: list[float], share: float) -> None:
    estimate = histogram_of(values).percentile(share)
    assert estimate == pytest.approx(exact(values, share), rel=0.05)


@given(MANY, MANY, MANY)
def test_merging_is_associative_and_holds_what_one_histogram_would(
    first: list[float], second: list[float], third: list[float]
) -> None:
    left = histogram_of(first)
    left.merge(histogram_of(second))
    left.merge(histogram_of(third))
    right = histogram_of(second)
    right.merge(histogram_of(third))
    right.merge(histogram_of(first))
    assert left == right == histogram_of([*first, *second, *third])
    packed = histogram_of(first)
    packed.merge_packed(histogram_of(second).pack())
    packed.merge_packed(histogram_of(third).pack())
    assert packed == left


@given(st.lists(SECONDS, max_size=200), st.integers(min_value=1, max_value=2**40))
def test_packed_bytes_give_the_same_histogram(values: list[float], weight: int) -> None:
    histogram = histogram_of(values, weight)
    packed = histogram.pack()
    assert Histogram.unpack(packed) == histogram
    assert histogram.count == len(values) * weight
    assert len(packed) <= MAX_PACKED


def test_a_weight_counts_a_duration_several_times() -> None:
    assert histogram_of([0.5, 2.0], 3) == histogram_of([0.5, 2.0] * 3)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9, 1e12, float("inf")])
def test_a_duration_outside_the_range_counts_in_the_first_or_last_bucket(value: float) -> None:
    histogram = histogram_of([value])
    assert histogram.count == 1
    assert histogram.percentile(0.5) is not None


def test_an_empty_histogram_has_no_percentile() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram.unpack(EMPTY) == Histogram()


@given(st.binary(max_size=60))
def test_bytes_of_a_stranger_are_a_histogram_or_a_value_error(packed: bytes) -> None:
    try:
        histogram = Histogram.unpack(packed)
    except ValueError:
        return
    assert Histogram.unpack(histogram.pack()) == histogram


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x02\x90",
        b"\x01",
        b"\x01\x92\x05",
        b"\x01\x91\x05",
        b"\x01\x92\x05\x00",
        b"\x01\x92\xcd\x01\x68\x01",
        b"\x01\x94\x05\x01\x00\x01",
        b"\x01\x92\xff\x01",
        b"\x01\x92\xa1a\x01",
    ],
)
def test_damaged_bytes_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram.unpack(packed)
    histogram = histogram_of([1.0])
    with pytest.raises(ValueError, match="histogram"):
        histogram.merge_packed(packed)
    assert histogram == histogram_of([1.0])


@given(MANY)
def test_the_mean_is_within_5_percent_of_the_exact_one(values: list[float]) -> None:
    assert histogram_of(values).mean == pytest.approx(sum(values) / len(values), rel=0.05)
    assert Histogram().mean is None
