"""The boundary's own counting, against a plain recursion; and unfinished JSON, which it counts too."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.http.boundary import depth, widest

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(), inside, max_size=4),
    max_leaves=30,
)


def deep(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(deep, value.values()), default=0)
        case list():
            return 1 + max(map(deep, value), default=0)
        case _:
            return 0


def wide(value: Any) -> int:
    match value:
        case dict():
            return max(len(value), *map(wide, value.values()), 0)
        case list():
            return max(map(wide, value), default=0)
        case _:
            return 0


@given(values, st.booleans())
def test_depth_and_width_are_counted_without_reading(value: Any, escaped: bool) -> None:
    data = json.dumps(value, ensure_ascii=escaped).encode(errors="replace")
    assert depth(data) == deep(value)
    assert widest(data) == wide(value)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", 0),
        (b"]]]", 0),
        (b"[[[", 3),
        (b'["[[[[', 1),
        (b'["\\"[[', 1),
        (b'["\\\\",[', 2),
        (b'["\\', 1),
        (b"{[}]", 2),
    ],
)
def test_unfinished_json_is_counted_too(data: bytes, found: int) -> None:
    assert depth(data) == found


@pytest.mark.parametrize("part", [b"[", b'"', b'\\"', b'"\\', b"{}", b"[" * 63 + b"]" * 63, b'"a":', b"\\"])
def test_counting_takes_linear_time(part: bytes) -> None:
    megabyte = (part * (1024 * 1024 // len(part) + 1))[: 1024 * 1024]
    began = time.process_time()
    depth(megabyte)
    widest(megabyte)
    assert time.process_time() - began < 5  # what grows with the square would take hours
