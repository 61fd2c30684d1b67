"""Fixtures of the server's tests: a real uvicorn on a free port, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace import Headrace
from server.running import Running, make_app, running


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    """The server does not depend on the kind of store. Tests that need other stores name them."""
    return str(request.param)


@pytest.fixture
def app(store_url: str) -> Headrace:
    """An app with a few tasks of every kind."""
    return make_app(store_url)


@pytest.fixture
async def server(app: Headrace) -> AsyncIterator[Running]:
    """A server of `app`: `server.http` is a client of it, `server.url` its address."""
    async with running(app) as found:
        yield found
