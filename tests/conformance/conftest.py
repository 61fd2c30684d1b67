"""An arena: the same kind of store again and again, empty each time, for tests that need many."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from databases import Databases
from http_stand import HttpStand, hand_over_clocks
from servers.redis import RedisServer

Arena = Callable[[], str]
"""The URL of an empty store; what the one before held is gone."""


@pytest.fixture
def arena(store_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if store_name == "memory":
        yield lambda: "memory://"
    elif store_name == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        numbers = count()
        yield lambda: f"sqlite:///{shutil.copy(template, tmp_path / f'{next(numbers)}.db')}"
    elif store_name == "http":
        stand: HttpStand = request.getfixturevalue("http_server")
        hand_over_clocks(stand, request.getfixturevalue("monkeypatch"))
        yield stand.fresh
        stand.clear()
    elif store_name in {"redis", "valkey"}:
        redis: RedisServer = request.getfixturevalue(f"{store_name}_server")
        yield lambda: _flushed(redis)
    else:
        databases: Databases = request.getfixturevalue("databases")
        url = databases.take()
        yield lambda: databases.empty(url)
        databases.give_back(url)


def _flushed(server: RedisServer) -> str:
    server.command("FLUSHALL")
    return server.url()
