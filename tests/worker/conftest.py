"""Fixtures for the worker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from conftest import nothing_left_behind
from worker.harness import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench()
