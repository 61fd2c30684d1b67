"""The statements of the documentation, on the real engine, over rows that the sink has written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.kit import failure, new, put_jobs, run_one
from headrace.model.job import JobState
from headrace.model.outcome import Finish
from headrace.sink.table import CREATE
from headrace.store.memory import MemoryStore
from sink.kit import Table

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "history.md"
STATEMENTS = re.findall(r"^```clickhouse\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_table_as_the_sink_makes_it():
    assert STATEMENTS[0] == CREATE.replace("{database}.{table}", "headrace_ends")


async def test_the_queries_answer(table: Table):
    store = MemoryStore()
    await put_jobs(store, *[new("shop.pay", tenant="acme")] * 5, new("shop.pay", tenant="bolt"))
    for _ in range(5):
        await run_one(store)
    await run_one(store, Finish(JobState.DEAD, note="max_attempts", failures=1, failure=failure()))
    # The table is the one of the page, and each row is in it twice.
    table.server.run(STATEMENTS[0].replace("headrace_ends", table.name))
    await table.sink(store, "host:1").tidy()
    await table.sink(store, "host:2", force=True).drain()
    table.server.run(f"INSERT INTO {table.name} SELECT * FROM {table.name}")
    assert table.count() >= 12
    tenants, times, bugs = [
        table.server.query(statement.replace("headrace_ends", table.name)) for statement in STATEMENTS[1:]
    ]
    # The tenants take turns, so the last job is one of the tenant that has more.
    assert [(row["tenant"], int(row["jobs"]), int(row["dead"])) for row in tenants] == [("acme", 5, 1), ("bolt", 1, 0)]
    assert sum(int(row["jobs"]) for row in times) == 6
    assert all(len(row["wait"]) == len(row["run"]) == 3 for row in times)
    [bug] = bugs
    assert (bug["kind"], bug["example"], int(bug["jobs"])) == ("ValueError", "shop.pay", 1)
    assert bug["first"] == bug["last"]


@pytest.mark.parametrize("statement", STATEMENTS[1:])
def test_the_queries_count_a_row_once(statement: str):
    assert "headrace_ends FINAL" in statement
