"""OpenTelemetry: which attempts have a span, what those without one still see, and that metrics count all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    AlwaysRecordSampler,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

from headrace import Headrace, JobDead, Retry, Snooze, current_job
from headrace.integrations.otel.contexts import ContinuedContext, RootContext
from headrace.integrations.otel.sampling import ASK, Rule, rule_of
from headrace.runtime.logs import JobLogFilter
from headrace.task.hooks import AsyncCall
from integrations import otel_tasks
from integrations.otel_kit import SPAN_ID, TRACE, TRACE_ID, UNSAMPLED, Observed

HALF = 1 << 63
WHOLE = 1 << 64
OTHER = f"00-{'1' * 32}-{'2' * 16}-00"


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sampled_by(sampler: Sampler, url: str) -> Observed:
    return Observed(url, TracerProvider(sampler=sampler))


def is_sampled(text: str) -> bool:
    return bool(int(text.split("-")[3], 16) & 1)


def injected() -> str:
    """What an instrumented HTTP client would send."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")


@pytest.mark.parametrize(
    ("sampler", "rule"),
    [
        (DEFAULT_ON, Rule(True, True, WHOLE, keeps_remote=True)),
        (DEFAULT_OFF, Rule(True, True, 0, keeps_remote=True)),
        (ParentBasedTraceIdRatio(0.5), Rule(True, True, HALF, keeps_remote=True)),
        (ParentBasedTraceIdRatio(1e-05), Rule(True, True, round(1e-05 * WHOLE), keeps_remote=True)),
        (ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON), Rule(False, True, WHOLE, keeps_remote=True)),
        (ParentBased(ALWAYS_ON, local_parent_not_sampled=ALWAYS_ON), Rule(True, False, WHOLE, keeps_remote=True)),
        (ParentBased(AlwaysRecordSampler(ALWAYS_OFF)), Rule(True, True, None, keeps_remote=True)),
        (ParentBased(ALWAYS_ON, remote_parent_sampled=ALWAYS_OFF), Rule(True, True, WHOLE)),
        (ParentBased(DEFAULT_ON), ASK),
        (AlwaysRecordSampler(DEFAULT_OFF), ASK),
        (TraceIdRatioBased(0.5), ASK),
        (ALWAYS_OFF, ASK),
    ],
    ids=lambda value: value.get_description() if isinstance(value, Sampler) else "",
)
def test_what_is_known_of_a_sampler(sampler: Sampler, rule: Rule) -> None:
    assert rule_of(sampler.get_description()) == rule


async def test_a_job_without_a_trace_begins_one_at_the_rate_of_the_sampler(store_url: str) -> None:
    observed = sampled_by(ParentBasedTraceIdRatio(0.5), store_url)
    observed.app.hooks.on_enqueue.clear()  # Its producers know nothing of traces.
    tracer = observed.provider.get_tracer("user")
    traces: list[tuple[int, bool]] = []

    @observed.app.task(name="rootless")
    async def rootless() -> None:
        with tracer.start_as_current_span("inner") as span:
            traces.append((span.get_span_context().trace_id, span.is_recording()))

    async with observed.app, observed.app.worker():
        for handle in await observed.app.aenqueue_many(rootless.job() for _ in range(200)):
            await handle.aresult(timeout=60)
    assert len({trace_id for trace_id, _ in traces}) == 200
    assert all(recorded == (trace_id % WHOLE < HALF) for trace_id, recorded in traces)
    sampled = {trace_id for trace_id, recorded in traces if recorded}
    assert 0 < len(sampled) < 200
    for name in ("process rootless", "inner"):
        contexts = [span.get_span_context() for span in observed.spans(name)]
        assert {each.trace_id for each in contexts if each is not None} == sampled
        assert len(contexts) == len(sampled)
    assert all(span.parent is None for span in observed.spans("process rootless"))
    assert observed.ends() == {("rootless", "done", ""): 200}


async def test_a_call_without_a_trace_begins_one_at_the_rate_of_the_sampler(store_url: str) -> None:
    observed = sampled_by(ParentBasedTraceIdRatio(0.5), store_url)

    @observed.app.task(name="each")
    async def each() -> str:
        return current_job().trace or ""

    async with observed.app, observed.app.worker():
        texts = [await (await each.aenqueue()).aresult(timeout=60) for _ in range(100)]
    assert len({text.split("-")[1] for text in texts}) == 100
    assert all(is_sampled(text) == (int(text.split("-")[1], 16) % WHOLE < HALF) for text in texts)
    sampled = sum(map(is_sampled, texts))
    assert 0 < sampled < 100
    assert len(observed.spans("send each")) == len(observed.spans("process each")) == sampled
    points = observed.points()
    assert [point.count for point in points["messaging.client.operation.duration"]] == [100]
    assert [point.value for point in points["messaging.client.sent.messages"]] == [100]
    assert observed.ends() == {("each", "done", ""): 100}


@pytest.mark.parametrize("parent", [TRACE, UNSAMPLED])
async def test_a_call_follows_the_trace_that_it_finds(store_url: str, parent: str) -> None:
    observed = sampled_by(DEFAULT_ON, store_url)

    @observed.app.task(name="each")
    async def each() -> str:
        return current_job().trace or ""

    async with observed.app, observed.app.worker():
        token = context.attach(propagate.extract({"traceparent": parent}))
        handle = await each.aenqueue()
        context.detach(token)
        text = await handle.aresult(timeout=60)
    assert text.startswith(f"00-{TRACE_ID}-")
    assert is_sampled(text) == is_sampled(parent)
    spans = 1 if is_sampled(parent) else 0
    assert len(observed.spans("send each")) == len(observed.spans("process each")) == spans


@pytest.mark.parametrize(("sampler", "share"), [(DEFAULT_OFF, 0), (DEFAULT_ON, 1)], ids=["none", "all"])
async def test_every_attempt_is_counted_however_many_have_a_span(store_url: str, sampler: Sampler, share: int) -> None:
    """Also where so many jobs are claimed together that only some are measured."""
    observed = sampled_by(sampler, store_url)
    app = observed.app

    @app.task(name="plain")
    async def plain() -> None:
        pass

    @app.task(name="result")
    async def result() -> int:
        return 1

    @app.task(name="thread")
    def thread() -> None:
        pass

    @app.task(name="bad", retry=Retry(max_attempts=1))
    async def bad() -> None:
        raise ValueError("no")

    @app.task(name="later")
    async def later() -> None:
        if current_job().attempt == 1:
            raise Snooze("1ms")

    jobs = [task.job() for task in (plain, result, thread, bad, later) for _ in range(100)]
    async with app:
        handles = await app.aenqueue_many(jobs)
        async with app.worker(concurrency=500):
            for handle in handles:
                with contextlib.suppress(JobDead):
                    await handle.aresult(timeout=60)
    assert observed.ends() == {
        ("plain", "done", ""): 100,
        ("result", "done", ""): 100,
        ("thread", "done", ""): 100,
        ("bad", "failed", "ValueError"): 100,
        ("later", "snoozed", ""): 100,
        ("later", "done", ""): 100,
    }
    spans = [span for span in observed.spans_out.get_finished_spans() if span.name.startswith("process ")]
    assert len(spans) == 600 * share
    measured = {
        (point.attributes["headrace.task"], point.attributes["headrace.outcome"]): point.count
        for point in observed.points()["messaging.process.duration"]
    }
    assert set(measured) == {(task, outcome) for task, outcome, _ in observed.ends()}
    assert measured["bad", "failed"] == measured["later", "snoozed"] == 100
    assert all(0 < count <= 100 for count in measured.values())


async def test_the_durations_of_few_attempts_are_all_measured(store_url: str) -> None:
    observed = sampled_by(DEFAULT_OFF, store_url)

    @observed.app.task(name="few")
    async def few() -> None:
        pass

    async with observed.app, observed.app.worker():
        for handle in await observed.app.aenqueue_many(few.job() for _ in range(20)):
            await handle.aresult(timeout=60)
    [point] = observed.points()["messaging.process.duration"]
    assert (point.count, point.attributes["headrace.outcome"]) == (20, "done")


async def test_the_histogram_gets_some_durations_of_many(store_url: str) -> None:
    observed = sampled_by(DEFAULT_OFF, store_url)
    meter = observed.app.hooks.meter
    assert meter is not None
    meter.ended("default", "t", "done", "", 5000, [0.1] * 5000)
    meter.ended("default", "u", "done", "", 500, [0.1] * 500)
    meter.ended("default", "t", "failed", "ValueError", 1, [0.1])
    points = {
        (point.attributes["headrace.task"], point.attributes["headrace.outcome"]): point.count
        for point in observed.points()["messaging.process.duration"]
    }
    assert 200 <= points["t", "done"] < 5000
    assert 1 <= points["u", "done"] < 500
    assert points["t", "failed"] == 1
    assert observed.ends() == {
        ("t", "done", ""): 5000,
        ("u", "done", ""): 500,
        ("t", "failed", "ValueError"): 1,
    }


async def test_a_task_without_a_span_sees_its_own_trace(store_url: str) -> None:
    """Jobs that one slot runs one after the other, with and without spans: each sees the trace of its own job."""
    observed = sampled_by(DEFAULT_ON, store_url)
    app, seen = observed.app, list[tuple[str, str]]()

    @app.task(name="slow")
    async def slow() -> None:
        seen.append((current_job().trace or "", injected()))
        await asyncio.sleep(0)

    @app.task(name="plain")
    def plain() -> None:
        seen.append((current_job().trace or "", injected()))

    traces = [UNSAMPLED, UNSAMPLED, OTHER, TRACE, UNSAMPLED, TRACE, OTHER]
    async with app:
        jobs = [task.using(trace=text).job() for task in (slow, plain) for text in traces]
        handles = await app.aenqueue_many(jobs)
        async with app.worker(concurrency=1):
            for handle in handles:
                await handle.aresult(timeout=60)
    assert len(seen) == 2 * len(traces)
    for own, sent in seen:
        if is_sampled(own):
            # The span of the attempt is the parent of the request.
            assert sent.split("-")[1] == own.split("-")[1]
            assert sent.split("-")[2] != own.split("-")[2]
            assert is_sampled(sent)
        else:
            assert sent == own
    assert len(observed.spans("process slow")) == len(observed.spans("process plain")) == 2


async def test_the_context_of_a_task_without_a_span_may_be_used_elsewhere(store_url: str) -> None:
    """Libraries take the current context into threads, and use it when the task has ended."""
    observed = sampled_by(DEFAULT_ON, store_url)
    contexts: list[Context] = []

    @observed.app.task(name="slow")
    async def slow() -> None:
        contexts.append(context.get_current())

    async with observed.app, observed.app.worker():
        for text in (UNSAMPLED, OTHER):
            await (await slow.using(trace=text).aenqueue()).aresult(timeout=60)
    sent: list[str] = []

    def send() -> None:
        for each in contexts:
            context.attach(each)
            sent.append(injected())

    thread = threading.Thread(target=send)
    thread.start()
    thread.join()
    assert sent == [UNSAMPLED, OTHER]


async def test_jobs_and_log_lines_of_a_task_without_a_span_have_its_trace(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    observed = sampled_by(DEFAULT_ON, store_url)
    app, calls = observed.app, list[str]()

    @app.middleware
    async def note(job: Any, call: AsyncCall) -> Any:
        calls.append(injected())
        return await call()

    @app.task(name="second")
    async def second() -> str:
        return current_job().trace or ""

    @app.task(name="first")
    async def first() -> str:
        logging.getLogger("shop").warning("here")
        return str((await second.aenqueue()).id)

    caplog.handler.addFilter(JobLogFilter())
    async with app, app.worker():
        id = await (await first.using(trace=UNSAMPLED).aenqueue()).aresult(timeout=60)
        text = await second.handle(id).aresult(timeout=60)
    assert text == UNSAMPLED
    [line] = [record for record in caplog.records if record.name == "shop"]
    assert vars(line)["trace_id"] == TRACE_ID
    assert calls == [UNSAMPLED, UNSAMPLED]
    assert [span.name for span in observed.spans_out.get_finished_spans()] == ["send first"]


async def test_a_process_task_without_a_span_continues_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(otel_tasks.FOLDER, str(tmp_path))
    app = otel_tasks.app
    monkeypatch.setattr(app, "settings", app.settings.replace(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    ended: list[tuple[str, str, int]] = []

    class Meter:
        def ended(self, queue: str, task: str, outcome: str, error: str, count: int, seconds: Any) -> None:
            ended.append((task, outcome, count))

    monkeypatch.setattr(app.hooks, "meter", Meter())
    async with app.worker(app="integrations.otel_tasks:app"):
        for task in (otel_tasks.in_child, otel_tasks.in_child_async):
            handle = await task.using(trace=UNSAMPLED).aenqueue()
            assert await handle.aresult(timeout=120) == TRACE_ID
    await app.aclose()
    written = (tmp_path / "spans").read_text() if (tmp_path / "spans").exists() else ""
    assert "process " not in written
    assert '"inner"' not in written
    assert ended == [("in_child", "done", 1), ("in_child_async", "done", 1)]


def reads() -> Iterator[Any]:
    key = next(iter(propagate.extract({"traceparent": UNSAMPLED}, Context())))
    yield lambda late: late.get(key)
    yield lambda late: late[key]
    yield lambda late: dict(late)[key]
    yield lambda late: {**late}[key]
    yield lambda late: Context(late)[key]
    yield lambda late: late.copy()[key]
    yield lambda late: dict(late.items())[key]
    yield lambda late: next(iter(late.values()))
    yield lambda late: late[next(iter(late))]
    yield lambda late: late[next(iter(late.keys()))]
    yield lambda late: late[key] if key in late and len(late) == 1 and bool(late) else None
    yield lambda late: context.get_value(key, late)
    yield trace.get_current_span


@pytest.mark.parametrize("read", list(reads()))
def test_a_late_context_can_be_read_in_every_way(read: Any) -> None:
    span = read(ContinuedContext(UNSAMPLED)).get_span_context()
    assert (f"{span.trace_id:032x}", f"{span.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert span.is_remote
    root = RootContext(7, is_sampled=False)
    span = read(root).get_span_context()
    assert (span.trace_id, span.trace_flags.sampled, span.is_valid) == (7, False, True)
    assert read(root).get_span_context() is span
    assert root == Context(root)
    assert not root != Context(root)  # noqa: SIM202
    assert repr(root) == repr(Context(root))
    assert not RootContext(7, is_sampled=True)


@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_a_job_of_another_app_begins_a_trace(store_url: str) -> None:
    observed = sampled_by(DEFAULT_ON, store_url)

    @observed.app.task(name="plain")
    async def plain() -> str:
        return injected()

    async with Headrace(store_url) as other, observed.app, observed.app.worker():
        send: Any = other.task(name="plain")(plain.function)
        handle = await send.aenqueue()
        text = await plain.handle(handle.id).aresult(timeout=60)
    [span] = observed.spans("process plain")
    assert (span.parent, list(span.links)) == (None, [])
    own = span.get_span_context()
    assert own is not None
    assert text.startswith(f"00-{own.trace_id:032x}-{own.span_id:016x}-")
