"""Fixtures for webhooks across processes."""

from __future__ import annotations

import pytest

from crash.conftest import STORES, scene, witness

__all__ = ["scene", "store_name", "witness"]


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
