"""Races run on stores that several store objects can share, each by its own clock."""

from __future__ import annotations

import pytest

LASTING_STORES = ("sqlite", "postgres", "redis", "valkey")
"""Those that two store objects can share."""


@pytest.fixture(params=LASTING_STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
