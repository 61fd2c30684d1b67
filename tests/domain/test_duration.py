"""Durations: what people write, what it means, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.model import duration


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("1.5s", timedelta(seconds=1.5)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        (" 7d ", timedelta(days=7)),
        ("0s", timedelta(0)),
        ("3650d", timedelta(days=3650)),
        (timedelta(minutes=3), timedelta(minutes=3)),
    ],
)
def test_written_durations_mean_what_they_say(text, meant):
    assert duration.parse(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30",
        "s",
        "-1s",
        "1 s",
        "1e3s",
        "1w",
        "1s1s",
        "١s",
        "nan s",
        "infs",
        "1S",
        "0x1s",
        ".5s",
        "1.s",
        "1\n s",
        "9" * 400 + "s",
        "3651d",
    ],
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(ConfigError, match=r"^timeout = "):
        duration.parse(text, name="timeout")


@pytest.mark.parametrize("value", [timedelta(seconds=-1), timedelta(days=3651), timedelta.max, timedelta.min])
def test_timedeltas_out_of_range_are_refused(value):
    with pytest.raises(ConfigError, match="out of range"):
        duration.parse(value)


@given(st.integers(0, 3650 * 86_400_000))
def test_what_is_shown_can_be_parsed(milliseconds):
    value = timedelta(milliseconds=milliseconds)
    assert duration.parse(duration.show(value)) == value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250ms"), (0.9999, "1s"), (12, "12s"), (119.99, "2m"), (7199.9, "2h"), (5760, "96m"), (172_799.5, "2d")],
)
def test_about_names_the_unit_that_was_set(seconds: float, text: str) -> None:
    assert duration.about(timedelta(seconds=seconds)) == text
