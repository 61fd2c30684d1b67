"""The log of a worker: the lines for each job, the fields of the lines that tasks log, text and JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import JobLogFilter, current_job
from headrace.model.job import Claimed, JobState
from headrace.model.outcome import Cancel, Snooze
from headrace.runtime.logs import JsonFormatter, TextFormatter, own_name
from headrace.task.job_options import JobOptions
from headrace.worker.job_log import JobLog
from worker.harness import Bench

own = logging.getLogger("shop.tasks")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == event]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_start_and_end_leave_a_line_each(bench: Bench, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    caplog.set_level(logging.INFO, logger="headrace.job")

    async def body(card: str) -> None: ...

    def plain(card: str) -> None: ...

    pay = bench.app.task(name="pay", redact=["card"])(body if kind == "async" else plain)
    id = await bench.enqueue(pay, "open sesame")
    async with bench.worker(job_log_level="info"):
        await bench.reach(id, JobState.DONE)
    [claimed] = lines(caplog, "job.claimed")
    assert (claimed.name, claimed.levelno) == ("headrace.job.claimed", logging.INFO)
    assert claimed.getMessage() == f"job {id} of task {pay.name} was claimed by {own_name()}, attempt 1"
    assert vars(claimed)["worker"] == own_name()
    [started], [ended] = lines(caplog, "attempt.started"), lines(caplog, "attempt.ended")
    assert caplog.records.index(claimed) < caplog.records.index(started)
    assert (started.name, started.levelno) == ("headrace.job.started", logging.INFO)
    assert started.getMessage() == f"job {id} of task {pay.name} started, attempt 1"
    assert ended.name == "headrace.job.ended"
    assert f"job {id} of task {pay.name} succeeded after " in ended.getMessage()
    assert {name: vars(ended)[name] for name in ("job_id", "task", "attempt", "queue", "outcome")} == {
        "job_id": str(id),
        "task": pay.name,
        "attempt": 1,
        "queue": "default",
        "outcome": "succeeded",
    }
    assert caplog.records.index(started) < caplog.records.index(ended)
    assert "sesame" not in caplog.text


async def test_other_ends_say_what_they_are(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.job")
    tries: list[int] = []

    @bench.app.task
    async def leave() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Snooze("0s")
        raise Cancel("not\x1b[31m needed")

    id = await bench.enqueue(leave)
    async with bench.worker():
        await bench.reach(id, JobState.CANCELLED)
    first, second = lines(caplog, "attempt.ended")
    assert "was put off by its task after" in first.getMessage()
    assert "was cancelled (not [31m needed) after" in second.getMessage()


async def test_lines_that_no_log_takes_cost_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the default level the worker asks the logger once per lease, and takes the quick path for each job."""
    caplog.set_level(logging.INFO, logger="headrace")
    asked: list[int] = []
    refresh = JobLog.refresh

    def count(log: JobLog) -> bool:
        asked.append(1)
        return refresh(log)

    def refuse(log: JobLog, job: Claimed | Sequence[Claimed], *rest: Any) -> None:
        raise AssertionError("a job was told to a log that takes no such lines")

    monkeypatch.setattr(JobLog, "refresh", count)
    monkeypatch.setattr(JobLog, "claimed", refuse)
    monkeypatch.setattr(JobLog, "started", refuse)
    monkeypatch.setattr(JobLog, "ended", refuse)

    @bench.app.task
    async def quick() -> None: ...

    ids = await bench.enqueue_many(quick, [()] * 200)
    async with bench.worker() as worker:
        for id in ids:
            await bench.reach(id, JobState.DONE)
        assert worker.counters.claimed == 200
    assert 0 < len(asked) < 100


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_line_that_a_task_logs_has_the_fields_of_its_job(
    bench: Bench, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.handler.addFilter(log_filter := JobLogFilter())

    async def body() -> None:
        await asyncio.sleep(0)
        own.warning("half way in %s", current_job().id)

    def plain() -> None:
        own.warning("half way in %s", current_job().id, extra={"task": "its own"})

    work = bench.app.task(name="work")(body if kind == "async" else plain)
    ids = await bench.enqueue_many(work, [()] * 3, options=JobOptions(trace=TRACE))
    try:
        async with bench.worker():
            for id in ids:
                await bench.reach(id, JobState.DONE)
    finally:
        caplog.handler.removeFilter(log_filter)
    found = [record for record in caplog.records if record.name == "shop.tasks"]
    assert len(found) == 3
    for record in found:
        fields = vars(record)
        assert record.getMessage() == f"half way in {fields['job_id']}"
        assert (fields["attempt"], fields["queue"], fields["worker"]) == (1, "default", own_name())
        assert fields["trace_id"] == TRACE.split("-")[1]
        assert fields["task"] == (work.name if kind == "async" else "its own")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_line_that_a_task_logs_has_no_redacted_value(
    bench: Bench, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.handler.addFilter(log_filter := JobLogFilter())

    def plain(card: str, order: int) -> None:
        try:
            raise ValueError(f"refused: {card}")
        except ValueError:
            own.exception("card %s of order %s", card, order, extra={"paid": {"with": card}, "order": order})

    async def body(card: str, order: int) -> None:
        plain(card, order)

    work = bench.app.task(name="work", redact=["card"])(body if kind == "async" else plain)
    [id] = await bench.enqueue_many(work, [("4111-1111", 7)])
    try:
        async with bench.worker():
            await bench.reach(id, JobState.DONE)
    finally:
        caplog.handler.removeFilter(log_filter)
    [record] = [record for record in caplog.records if record.name == "shop.tasks"]
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["job_id"], line["order"]) == ("card ••• of order 7", str(id), 7)
    assert line["paid"] == "{'with': '•••'}"
    assert line["exception"].endswith("ValueError: refused: •••")
    assert "4111" not in logging.Formatter("%(message)s").format(record)


def test_a_line_outside_a_task_has_no_fields() -> None:
    record = logging.makeLogRecord({"msg": "hello", "name": "shop"})
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(JobLogFilter().filter(record)))
    thread.start()
    thread.join()
    assert seen == [True]
    assert not hasattr(record, "job_id")


# ── the two formats ─────────────────────────────────────────────────────────


class Broken:
    def __str__(self) -> str:
        raise ValueError("no text")


def record(**fields: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "created": 0.0, "process": 7, **fields})
    made.msg, made.args = fields.get("msg", "it costs %d"), fields.get("args", (5,))
    return made


def test_a_json_line_is_one_object_with_the_known_fields_first() -> None:
    text = JsonFormatter("host:7").format(
        record(job_id="1", task="pay", attempt=2, tenant="", queue="q", size=3, path=b"x")
    )
    assert "\n" not in text
    found = json.loads(text)
    assert list(found)[:4] == ["time", "level", "logger", "message"]
    assert found == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "shop",
        "message": "it costs 5",
        "job_id": "1",
        "task": "pay",
        "attempt": 2,
        "queue": "q",
        "worker": "host:7",
        "pid": 7,
        "size": 3,
        "path": "eA==",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"msg": "half \ud800 a character", "args": ()},
        {"thing": Broken()},
        {"thing": {Broken(): 1}},
        {"thing": float("nan")},
        {"thing": {1, 2}},
        {"time": "mine", "level": "mine"},
    ],
)
def test_no_value_costs_a_json_line(fields: dict[str, Any]) -> None:
    found = json.loads(JsonFormatter().format(record(**fields)))
    assert (found["level"], found["logger"]) == ("info", "shop")


def test_an_exception_stays_on_the_json_line() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        text = JsonFormatter().format(record(exc_info=(ValueError, error, error.__traceback__)))
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: no")


def test_a_text_line_of_a_task_names_its_job() -> None:
    formatter = TextFormatter("%(levelname)s %(message)s")
    assert formatter.format(record()) == "INFO it costs 5"
    bound = record(job_id="1", task="pay", attempt=2)
    assert formatter.format(bound) == "INFO it costs 5 (job 1 of task pay, attempt 2)"
    whole = record(job_id="1", task="pay", attempt=2, tenant="acme", trace_id="4bf9")
    assert formatter.format(whole) == "INFO it costs 5 (job 1 of task pay, attempt 2, tenant acme, trace 4bf9)"
    bound.name = "headrace.job.failed"  # its text names the job already
    assert formatter.format(bound) == "INFO it costs 5"
