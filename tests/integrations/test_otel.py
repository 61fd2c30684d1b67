"""OpenTelemetry: spans of producers and attempts with the real SDK, through HTTP, stores and process tasks; metrics."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanKind, StatusCode, TraceFlags

from headrace import Cancel, ConfigError, Headrace, JobCancelled, JobDead, Retry, Snooze, current_job
from headrace.integrations import otel
from integrations import otel_tasks
from integrations.otel_kit import SPAN_ID, TRACE, TRACE_ID, Observed
from server.running import running


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def observed(store_url: str) -> AsyncIterator[Observed]:
    found = Observed(store_url)
    yield found
    await found.app.aclose()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


async def test_an_attempt_continues_the_trace_of_its_producer(observed: Observed) -> None:
    app, tracer = observed.app, observed.provider.get_tracer("user")

    @app.task(name="slow", queue="reports")
    async def slow() -> str:
        with tracer.start_as_current_span("inner"):
            return current_job().trace or ""

    @app.task(name="plain")
    def plain() -> str:
        with tracer.start_as_current_span("inner"):
            return current_job().trace or ""

    async with app.worker(queues=["default", "reports"]):
        for task in (slow, plain):
            with tracer.start_as_current_span("request") as request:
                handle = await task.using(tenant="acme").aenqueue()
            text = await handle.aresult(timeout=60)
            (send,), (process,) = observed.spans(f"send {task.name}"), observed.spans(f"process {task.name}")
            (inner,) = observed.spans("inner")
            assert text.startswith(f"00-{ids(send)[0]:032x}-{ids(send)[1]:016x}-")
            assert ids(send)[0] == ids(process)[0] == ids(inner)[0] == request.get_span_context().trace_id
            assert [each.parent and each.parent.span_id for each in (send, process, inner)] == [
                request.get_span_context().span_id,
                ids(send)[1],
                ids(process)[1],
            ]
            assert linked(process) == [ids(send)]
            assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
            common = {
                "messaging.system": "headrace",
                "messaging.destination.name": task.options.queue,
                "messaging.message.id": str(handle.id),
                "headrace.task": task.name,
            }
            sent = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
            processed = {
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "headrace.attempt": 1,
                "headrace.tenant": "acme",
                "headrace.outcome": "done",
            }
            assert dict(send.attributes or {}) == common | sent
            assert dict(process.attributes or {}) == common | processed
            observed.spans_out.clear()


async def test_a_bulk_call_is_one_producer_span(observed: Observed) -> None:
    @observed.app.task(name="each")
    async def each(n: int) -> int:
        return n

    async with observed.app.worker():
        for handle in await observed.app.aenqueue_many(each.job(n) for n in range(5)):
            await handle.aresult(timeout=60)
    (send,) = observed.spans("send")
    assert (send.attributes or {})["messaging.batch.message_count"] == 5
    assert [linked(span) for span in observed.spans("process each")] == [[ids(send)]] * 5


async def test_each_attempt_has_a_span_with_the_same_link_and_a_failure_marks_it(observed: Observed) -> None:
    app = observed.app

    @app.task(name="login", redact=["password"], retry=Retry(max_attempts=2, base="1ms"))
    async def login(password: str) -> None:
        raise PermissionError(f"wrong password: {password}")

    async with app.worker():
        with pytest.raises(JobDead):
            await (await login.aenqueue("hush-hush")).aresult(timeout=60)
    (send,) = observed.spans("send login")
    attempts = observed.spans("process login")
    assert [(span.attributes or {})["headrace.attempt"] for span in attempts] == [1, 2]
    for span in attempts:
        assert linked(span) == [ids(send)]
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "PermissionError"
        assert (span.attributes or {})["headrace.outcome"] == "failed"
        (event,) = span.events
        assert event.name == "exception"
        assert "in login" in str((event.attributes or {})["exception.stacktrace"])
        assert str((event.attributes or {})["exception.message"]).startswith("wrong password: ")
        assert "hush-hush" not in span.to_json()
    assert send.status.status_code is StatusCode.UNSET


async def test_outcomes_that_are_no_failures_do_not_mark_the_span(observed: Observed) -> None:
    app = observed.app

    @app.task(name="later")
    async def later() -> None:
        if current_job().attempt == 1:
            raise Snooze("1ms")

    @app.task(name="never")
    def never() -> None:
        raise Cancel("not needed")

    async with app.worker():
        await (await later.aenqueue()).aresult(timeout=60)
        with pytest.raises(JobCancelled):
            await (await never.aenqueue()).aresult(timeout=60)
    spans = [*observed.spans("process later"), *observed.spans("process never")]
    assert [(span.attributes or {})["headrace.outcome"] for span in spans] == ["snoozed", "done", "cancelled"]
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}


async def test_a_timeout_is_a_failure_and_a_cancel_is_an_interruption(observed: Observed) -> None:
    app, started = observed.app, asyncio.Event()

    @app.task(name="late", timeout="50ms", retry=Retry(max_attempts=1))
    async def late() -> None:
        await asyncio.Event().wait()

    @app.task(name="stopped", timeout="1h")
    async def stopped() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app.worker(heartbeat="50ms"):
        with pytest.raises(JobDead):
            await (await late.aenqueue()).aresult(timeout=60)
        handle = await stopped.aenqueue()
        await asyncio.wait_for(started.wait(), 60)
        await handle.acancel()
        with pytest.raises(JobCancelled):
            await handle.aresult(timeout=60)
    (first,), (second,) = observed.spans("process late"), observed.spans("process stopped")
    assert ((first.attributes or {})["error.type"], first.status.status_code) == ("timeout", StatusCode.ERROR)
    assert (second.attributes or {})["headrace.outcome"] == "interrupted"
    assert second.status.status_code is StatusCode.UNSET
    assert observed.ends() == {("late", "failed", "timeout"): 1, ("stopped", "interrupted", ""): 1}


async def test_an_attempt_without_a_span_keeps_its_trace_and_is_measured(store_url: str) -> None:
    observed = Observed(store_url, TracerProvider(sampler=ParentBased(ALWAYS_OFF)))
    tracer = observed.provider.get_tracer("user")
    traces: list[int] = []

    @observed.app.task(name="slow", retry=Retry(max_attempts=1))
    async def slow(fails: bool) -> None:
        # A library that traces by itself finds the trace here, and does not begin one of its own.
        with tracer.start_as_current_span("inner") as span:
            traces.append(span.get_span_context().trace_id)
        if fails:
            raise ValueError("no")

    @observed.app.task(name="plain")
    def plain() -> None:
        traces.append(trace.get_current_span().get_span_context().trace_id)

    async with observed.app.worker():
        await (await slow.using(trace=f"{TRACE[:-2]}00").aenqueue(fails=False)).aresult(timeout=60)
        with pytest.raises(JobDead):
            await (await slow.using(trace=f"{TRACE[:-2]}00").aenqueue(fails=True)).aresult(timeout=60)
        await (await plain.using(trace=f"{TRACE[:-2]}00").aenqueue()).aresult(timeout=60)
    assert traces == [int(TRACE_ID, 16)] * 3
    assert observed.spans_out.get_finished_spans() == ()
    outcomes = {
        (point.attributes["headrace.task"], point.attributes["headrace.outcome"], point.attributes.get("error.type"))
        for point in observed.points()["messaging.process.duration"]
    }
    assert outcomes == {("slow", "done", None), ("slow", "failed", "ValueError"), ("plain", "done", None)}
    await observed.app.aclose()


async def test_a_sampler_that_decides_by_itself_is_asked_for_every_attempt(store_url: str) -> None:
    observed = Observed(store_url, TracerProvider(sampler=ALWAYS_ON))

    @observed.app.task(name="slow")
    async def slow() -> None:
        pass

    async with observed.app.worker():
        await (await slow.using(trace=f"{TRACE[:-2]}00").aenqueue()).aresult(timeout=60)
    (process,) = observed.spans("process slow")
    assert ids(process)[0] == int(TRACE_ID, 16)
    await observed.app.aclose()


async def test_a_trace_that_is_not_sampled_goes_on_without_spans(store_url: str) -> None:
    observed = Observed(store_url, TracerProvider(sampler=ParentBased(ALWAYS_OFF)))

    @observed.app.task(name="quiet")
    async def quiet() -> tuple[str, str]:
        assert isinstance(trace.get_current_span(), NonRecordingSpan)
        return current_job().trace or "", format(trace.get_current_span().get_span_context().trace_id, "032x")

    async with observed.app, observed.app.worker():
        text, trace_id = await (await quiet.aenqueue()).aresult(timeout=60)
    assert text.split("-")[1] == trace_id
    assert not int(text.split("-")[3], 16) & TraceFlags.SAMPLED
    assert observed.spans_out.get_finished_spans() == ()


async def test_a_failed_call_marks_the_producer_span(observed: Observed) -> None:
    @observed.app.task(name="each")
    async def each(n: int) -> int:
        return n

    with pytest.raises(ConfigError):
        await observed.app.aenqueue_many([each.job(1), "each"])  # type: ignore[list-item]
    (send,) = observed.spans("send")
    assert send.status.status_code is StatusCode.ERROR
    assert (send.attributes or {})["error.type"] == "headrace.errors.ConfigError"


async def test_metrics_count_by_task_and_outcome(observed: Observed) -> None:
    app = observed.app

    @app.task(name="good")
    async def good(n: int) -> int:
        return n

    @app.task(name="bad", retry=Retry(max_attempts=1))
    def bad() -> None:
        raise ValueError("no")

    async with app.worker():
        for handle in await app.aenqueue_many(good.job(n) for n in range(3)):
            await handle.aresult(timeout=60)
        with pytest.raises(JobDead):
            await (await bad.using(tenant="acme").aenqueue()).aresult(timeout=60)
    points = observed.points()
    processed = {
        (point.attributes["headrace.task"], point.attributes["headrace.outcome"], point.attributes.get("error.type")): (
            point.count
        )
        for point in points["messaging.process.duration"]
    }
    assert processed == {("good", "done", None): 3, ("bad", "failed", "ValueError"): 1}
    assert sorted(point.count for point in points["messaging.client.operation.duration"]) == [1, 1]
    assert sorted(point.value for point in points["messaging.client.sent.messages"]) == [1, 3]
    consumed = points["messaging.client.consumed.messages"]
    assert {point.attributes["headrace.task"]: point.value for point in consumed} == {"good": 3, "bad": 1}
    every = {name for all_points in points.values() for point in all_points for name in point.attributes}
    assert not every & {"messaging.message.id", "headrace.attempt", "headrace.tenant"}


async def test_a_job_with_the_result_of_another_continues_the_trace(observed: Observed) -> None:
    app = observed.app

    @app.task(name="first")
    async def first() -> int:
        return 7

    @app.task(name="second")
    async def second(n: int) -> int:
        return n + 1

    async with app.worker():
        assert await (await app.aenqueue(first.job().then(second))).aresult(timeout=60) == 8
    [sent] = observed.spans("send")
    attempts = [*observed.spans("process first"), *observed.spans("process second")]
    assert [linked(span) for span in attempts] == [[ids(sent)], [ids(sent)]]


async def test_from_an_http_client_through_a_file_into_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(otel_tasks.FOLDER, str(tmp_path))
    app = otel_tasks.app
    monkeypatch.setattr(app, "settings", app.settings.replace(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    async with running(app) as server:
        made = []
        for task in ("in_child", "in_child_async"):
            answer = await server.http.post("/v1/jobs", json={"task": task}, headers={"traceparent": TRACE})
            assert answer.status_code == 201, answer.text
            made.append(app.tasks[task].handle(answer.json()["id"]))
        async with app.worker(app="integrations.otel_tasks:app"):
            assert [await handle.aresult(timeout=120) for handle in made] == [TRACE_ID, TRACE_ID]
    spans = {span["name"]: span for span in map(json.loads, (tmp_path / "spans").read_text().splitlines())}
    assert set(spans) == {"process in_child", "process in_child_async", "inner"}
    for name in ("process in_child", "process in_child_async"):
        assert spans[name]["pid"] != os.getpid()
        assert spans[name]["parent_id"] == f"0x{SPAN_ID}"
        assert [link["context"]["span_id"] for link in spans[name]["links"]] == [f"0x{SPAN_ID}"]
    assert spans["inner"]["parent_id"] == spans["process in_child"]["context"]["span_id"]


async def test_from_a_producer_of_a_remote_store_into_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trace: the caller, the producer that enqueues over HTTP, the server's file, and the attempt in a child."""
    monkeypatch.setenv(otel_tasks.FOLDER, str(tmp_path))
    app = otel_tasks.app
    monkeypatch.setattr(app, "settings", app.settings.replace(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    async with running(app) as server:
        token = await server.token("enqueue", "read")
        producer = Observed(server.url.replace("//", f"//{token}@"))
        in_child = producer.app.task(name="in_child")(otel_tasks.in_child_body)
        with producer.provider.get_tracer("user").start_as_current_span("request") as request:
            handle = await in_child.aenqueue()
        async with app.worker(app="integrations.otel_tasks:app"):
            trace_id = await handle.aresult(timeout=120)
        await producer.app.aclose()
    (send,) = producer.spans("send in_child")
    spans = {span["name"]: span for span in map(json.loads, (tmp_path / "spans").read_text().splitlines())}
    attempt = spans["process in_child"]
    assert attempt["pid"] != os.getpid()
    assert trace_id == f"{request.get_span_context().trace_id:032x}" == f"{ids(send)[0]:032x}"
    assert attempt["context"]["trace_id"] == f"0x{trace_id}"
    assert attempt["parent_id"] == attempt["links"][0]["context"]["span_id"] == f"0x{ids(send)[1]:016x}"
    assert spans["inner"]["parent_id"] == attempt["context"]["span_id"]


async def test_without_an_sdk_jobs_carry_nothing() -> None:
    app = Headrace("memory://")
    otel.instrument(app, trace.NoOpTracerProvider())

    @app.task(name="bare")
    async def bare() -> str | None:
        return current_job().trace

    async with app.worker():
        assert await (await bare.aenqueue()).aresult(timeout=60) is None


def test_an_app_is_instrumented_once() -> None:
    app = Headrace("memory://")
    otel.instrument(app)
    with pytest.raises(ConfigError, match="instrumented already"):
        otel.instrument(app)
