"""A real engine of ClickHouse for all tests of a process, and an empty table for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from headrace.sink.address import parse
from servers.clickhouse import ClickHouseServer
from sink.kit import Table

_numbers = itertools.count()


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[ClickHouseServer]:
    with ClickHouseServer.start() as server:
        yield server


@pytest.fixture
def table(clickhouse: ClickHouseServer) -> Iterator[Table]:
    """A name that no table has yet."""
    name = f"ends_{next(_numbers)}"
    url = clickhouse.url(table=name)
    assert parse(url).table == name
    yield Table(clickhouse, name, url)
    clickhouse.run(f"DROP TABLE IF EXISTS {name}")
