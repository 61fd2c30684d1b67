"""Real worker processes on real stores, and what they leave behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conftest import opened
from crash.scene import Scene
from headrace.store import connect

STORES = ("sqlite", "postgres", "valkey")
ALSO_ON_REDIS = {"test_a_crash_at", "test_workers_killed_at_random_lose_nothing"}
"""Where a store has a part in what happens; the others are about processes, and Valkey stands for both."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_name" in metafunc.fixturenames:
        more = ("redis",) if metafunc.function.__name__ in ALSO_ON_REDIS else ()
        metafunc.parametrize("store_name", (*STORES, *more), indirect=True)


@pytest.fixture
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
