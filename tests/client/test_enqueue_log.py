"""The log of producers: one line for each job, from every way to enqueue, with its producer, key and trace."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.client import enqueue_log
from headrace.runtime.logs import own_name

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACE = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def lines(caplog: pytest.LogCaptureFixture, event: str = "job.enqueued") -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if getattr(record, "event", "") == event]


@pytest.fixture
def app(tmp_path: Path) -> Headrace:
    app = Headrace(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="pay", queue="billing", redact=["card"])
    async def pay(card: str) -> None: ...

    return app


def test_each_way_of_sync_code_leaves_a_line(app: Headrace, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.job.enqueued")
    pay = app.tasks["pay"]
    first = pay.using(key="order-7", tenant="acme", trace=TRACE).enqueue("open sesame")
    again = pay.using(key="order-7", tenant="acme", trace=TRACE).enqueue("open sesame")
    quick = pay.enqueue("open sesame")
    many = app.enqueue_many(pay.job("open sesame") for _ in range(3))
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute("begin immediate")
        joined = pay.using(tx=connection).enqueue("open sesame")
    app.close()
    assert again.id == first.id
    records = lines(caplog)
    assert [line["job_id"] for line in records] == [str(handle.id) for handle in (first, quick, *many, joined)]
    names = ("task", "queue", "tenant", "by", "key", "trace_id")
    assert {name: records[0][name] for name in names} == {
        "task": "pay",
        "queue": "billing",
        "tenant": "acme",
        "by": own_name(),
        "key": "order-7",
        "trace_id": TRACE_ID,
    }
    assert "key" not in records[1]
    assert [line["job_id"] for line in lines(caplog, "job.exists")] == [str(first.id)]
    assert f"job {quick.id} of task pay was enqueued in queue billing by {own_name()}" in caplog.messages
    assert "sesame" not in caplog.text


async def test_each_way_of_async_code_leaves_a_line(app: Headrace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.job.enqueued")
    pay = app.tasks["pay"]
    handles = [await pay.aenqueue("open sesame"), *await app.aenqueue_many(pay.job("x") for _ in range(2))]
    await app.aclose()
    assert [line["job_id"] for line in lines(caplog)] == [str(handle.id) for handle in handles]


async def test_lines_that_no_log_takes_are_not_made(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("a line was made that no log takes")

    monkeypatch.setattr(enqueue_log, "tell", refuse)
    pay = app.tasks["pay"]
    await pay.aenqueue("x")
    await app.aenqueue_many(pay.job("x") for _ in range(2))
    await app.aclose()
