"""After every case the server is well, ran nothing, and had nothing to complain of."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from headrace.model.records import Filter
from server.running import Running

EVERYTHING = Filter()


@pytest.fixture
async def unharmed(server: Running, caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Whatever was sent, the server is well, no job ran, and it says nothing of a fault of its own."""
    yield
    assert (await server.http.get("/healthz")).status_code == 200
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    # A job that ran has a worker, and none was ever here.
    assert all(not job.attempt for job in (await server.store.find(EVERYTHING)).jobs)
