"""Apps on every store that needs no server of its own."""

from __future__ import annotations

import pytest

from headrace import Headrace
from headrace.settings import Settings


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(store_url: str) -> Headrace:
    return Headrace(settings=Settings(url=store_url))
