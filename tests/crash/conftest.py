"""Real worker processes on real stores, and what they leave behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conftest import opened
from crash.scene import Scene
from headrace.store import connect


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "witness.jsonl"
    path.touch()
    os.environ["CRASH_WITNESS"] = str(path)
    yield path
    del os.environ["CRASH_WITNESS"]


@pytest.fixture
async def scene(store_url: str, witness: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(connect(store_url)) as store:
        scene = Scene(store_url, store, witness, tmp_path)
        try:
            yield scene
        finally:
            scene.clear()
