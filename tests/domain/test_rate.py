"""Rates: what people write, and a pace that keeps to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.model.rate import Pacer, parse, show


@pytest.mark.parametrize(
    ("text", "per_second"), [("50/s", 50), ("90/m", 1.5), (" 3600 / h ", 1), ("0.5/s", 0.5), ("86400/d", 1)]
)
def test_rates(text: str, per_second: float):
    assert parse(text) == pytest.approx(per_second)


@pytest.mark.parametrize("text", ["", "50", "0/s", "-1/s", "50/y", "a/s", "1e9/s", "50 per second", 50, None])
def test_what_is_no_rate(text: Any):
    with pytest.raises(ConfigError, match=r"pace = .* is not a rate: write"):
        parse(text, name="pace")


@given(st.floats(0.001, 10_000), st.lists(st.floats(0, 5), max_size=30))
async def test_no_more_than_the_rate_over_any_time(rate: float, work: list[float]):
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pacer = Pacer(rate, most=250, sleep=sleep, clock=lambda: now)
    went: list[float] = []
    for seconds in work:
        await pacer.pace(pacer.portion)
        went.append(now)
        now += seconds
    # Between any two portions there is the time of those in between, however long the work itself took.
    for first, begin in enumerate(went):
        for last in range(first, len(went)):
            assert (last - first) * pacer.portion <= rate * (went[last] - begin) * (1 + 1e-9) + 1e-6


async def test_without_a_rate_nothing_waits():
    async def sleep(seconds: float) -> None:
        raise AssertionError(f"slept {seconds}")

    pacer = Pacer(None, most=250, sleep=sleep, clock=lambda: 0.0)
    assert pacer.portion == 250
    for _ in range(10):
        await pacer.pace(250)


@pytest.mark.parametrize(
    ("rate", "text"), [(50.0, "50/s"), (1.5, "1.5/s"), (0.1, "6/m"), (1 / 600, "6/h"), (1 / 86_400, "1/d")]
)
def test_a_rate_is_shown_as_it_is_written(rate: float, text: str):
    assert show(rate) == text
    assert parse(show(rate)) == pytest.approx(rate)
