"""Databases of the user's own, each with an outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from servers.postgres import PostgresServer


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "business.db")


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def business(request: pytest.FixtureRequest, file: str) -> str:
    """The URL of a database of the user's own."""
    return f"sqlite:///{file}" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def user(business: str) -> Iterator[Any]:
    """The user's own connection to it."""
    if business.startswith("sqlite"):
        with closing(sqlite3.connect(business.removeprefix("sqlite:///"), timeout=60)) as connection:
            yield connection
    else:
        with psycopg.connect(business) as connection:
            yield connection
