"""Closed lanes: every case about jobs that wait, with a lane for each run of them, however small."""

from __future__ import annotations

import pytest

from conformance import test_gates as cases
from conformance import test_workflow_prune as retention


@pytest.fixture(autouse=True)
def small_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.redis.plans._LARGE", 1)


for module in (cases, retention):
    globals().update({name: case for name, case in vars(module).items() if name.startswith("test_")})
