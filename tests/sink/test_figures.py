"""The state of the sink, as operators see it: `headrace sink`, `headrace doctor` and the metrics of the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.shell import Shell
from conformance.kit import put, run_one
from headrace.model.job import JobState
from headrace.sink.figures import SinkFigures, exposition
from headrace.sink.state import SinkState
from server.running import Running, make_app, running
from sink.kit import Table


@pytest.fixture
def store_name() -> str:
    return "sqlite"


@pytest.fixture
def shell(store_url: str, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_URL", store_url)
    monkeypatch.setenv("HEADRACE_HISTORY_URL", table.url)
    path = list(sys.path)
    yield Shell(tmp_path, store_url)
    sys.path[:] = path


def finding(shell: Shell) -> tuple[str, str]:
    [about] = [entry for entry in shell.json("doctor")["findings"] if entry["about"] == "history sink"]
    return about["level"], about["message"]


def test_once_and_doctor(shell: Shell, table: Table, monkeypatch: pytest.MonkeyPatch):
    level, message = finding(shell)
    assert level == "warning"
    assert "no process has written" in message
    ids = shell.put(3)
    shell.end("default", JobState.DONE)
    assert shell("sink", "--once").stderr == "wrote 3 rows\n"
    assert table.ids() == sorted(ids)
    level, message = finding(shell)
    assert level == "ok"
    assert message.startswith(f"3 rows written to 127.0.0.1:{table.server.port}/default.{table.name}, ")
    assert table.server.password not in shell("doctor").output
    monkeypatch.setenv("HEADRACE_HISTORY_URL", table.server.url(table=table.name, password="hunter2"))
    shell.put(1)
    shell.end("default", JobState.DONE)
    error = shell.error("sink", "--once", code=1)
    assert "answered 403: Code: 516" in error
    level, message = finding(shell)
    assert level == "warning"
    assert "the last attempt failed: ClickHouse at" in message
    assert "hunter2" not in error + message + shell("doctor").output


def test_rows_that_were_deleted_come_back_when_asked(shell: Shell, table: Table):
    ids = shell.put(3)
    shell.end("default", JobState.DONE)
    shell("sink", "--once")
    # The rows are equal to those of the first insert, and the engine remembers that insert.
    table.server.run(f"ALTER TABLE {table.name} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    assert table.ids() == []
    assert shell("sink", "--once", "--from-start").stderr == "wrote 3 rows\n"
    assert table.ids() == sorted(ids)


def test_without_a_table_and_with_a_server(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    assert "the sink reads the store itself" in shell.error("sink", "--url", "http://127.0.0.1:1", code=78, url=False)
    monkeypatch.delenv("HEADRACE_HISTORY_URL")
    assert "set HEADRACE_HISTORY_URL" in shell.error("sink", code=78)
    assert all(entry["about"] != "history sink" for entry in shell.json("doctor")["findings"])


async def test_metrics_of_the_server(store_url: str, table: Table):
    async with running(make_app(store_url)) as server:
        store = server.service.store
        assert "headrace_sink" not in (await server.http.get("/metrics")).text
        await put(store, 2)
        await run_one(store)
        await table.sink(store).tidy()
        server.service.figures._sinks.forget()  # It is known from memory for a second.
        text = (await server.http.get("/metrics")).text
        place = f'{{table="127.0.0.1:{table.server.port}/default.{table.name}"}}'
        assert f"headrace_sink_rows_total{place} 1\n" in text
        assert f"headrace_sink_failing{place} 0\n" in text
        assert f"headrace_sink_lag_seconds{place} " in text
        await _hides_it_from_a_bound_token(server)


async def _hides_it_from_a_bound_token(server: Running) -> None:
    async with server.client(await server.token("read", queues=["default"])) as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert "headrace_sink" not in answer.text


def test_a_foreign_record_breaks_no_line():
    text = exposition([SinkFigures('a"\nb 1', 1, 0.5, "no")])
    assert 'headrace_sink_rows_total{table="a__b_1"} 1\n' in text
    assert 'headrace_sink_failing{table="a__b_1"} 1\n' in text


def test_the_lag_of_a_sink_that_never_reached_the_end():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    state = SinkState(holder="host:1", until=now, at=now - timedelta(seconds=90))
    assert state.lag(now) == 90
