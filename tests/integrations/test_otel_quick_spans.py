"""Spans of attempts that are made when the attempt is over: they are those that the SDK would have made."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, SamplingResult
from opentelemetry.trace import Link, SpanKind, StatusCode, TraceState
from opentelemetry.util.types import Attributes

from headrace import JobDead, Retry, current_job
from integrations import otel_tasks
from integrations.otel_kit import SPAN_ID, TRACE, TRACE_ID, Observed

COUNT = 12


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Asked(ParentBased):
    """The default sampler, which counts how often the SDK asks it: once for each span that the SDK makes."""

    def __init__(self) -> None:
        super().__init__(ALWAYS_ON)
        self.names: list[str] = []

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        self.names.append(name)
        return super().should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)


class Aware(SpanProcessor):
    """A processor that wants to see each span when it starts."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        del parent_context
        self.started.append(span.name)


class Quick(Observed):
    """An app whose sampler counts the spans that the SDK makes."""

    def __init__(self, url: str, limits: SpanLimits | None = None) -> None:
        self.sampler = Asked()
        super().__init__(url, TracerProvider(sampler=self.sampler, span_limits=limits))

    def made_by_sdk(self, name: str) -> int:
        return self.sampler.names.count(name)


def shown(span: ReadableSpan) -> dict[str, Any]:
    """All that a span says, but for what is different in each."""
    text: dict[str, Any] = json.loads(span.to_json() or "")
    for name in ("span_id", "trace_state"):
        text["context"].pop(name)
    for name in ("start_time", "end_time"):
        text.pop(name)
    text["attributes"].pop("messaging.message.id")
    return text


async def run_plain(
    observed: Observed, tenant: str | None = None, traces: Sequence[str] = (TRACE,) * COUNT
) -> list[str]:
    """Run jobs that do nothing, one after the other. Returns their ids."""

    @observed.app.task(name="plain")
    async def plain() -> None: ...

    async with observed.app, observed.app.worker(concurrency=1):
        jobs = [plain.using(trace=text, tenant=tenant).job() for text in traces]
        handles = await observed.app.aenqueue_many(jobs)
        for handle in handles:
            await handle.aresult(timeout=60)
    return [str(handle.id) for handle in handles]


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_each_attempt_has_the_span_that_the_sdk_would_make(store_url: str, tenant: str | None) -> None:
    observed = Quick(store_url)
    ids = await run_plain(observed, tenant)
    spans = observed.spans("process plain")
    assert observed.made_by_sdk("process plain") == 1
    assert [(span.attributes or {})["messaging.message.id"] for span in spans] == ids
    assert len({span.context.span_id for span in spans if span.context}) == COUNT
    first, *others = map(shown, spans)
    assert first["attributes"]["headrace.outcome"] == "done"
    assert first["attributes"].get("headrace.tenant") == tenant
    assert first["parent_id"] == f"0x{SPAN_ID}"
    assert [link["context"]["span_id"] for link in first["links"]] == [f"0x{SPAN_ID}"]
    assert others == [first] * (COUNT - 1)
    times = [(span.start_time or 0, span.end_time or 0) for span in spans]
    assert all(began <= ended for began, ended in times)
    assert times == sorted(times)


async def test_spans_of_other_traces_follow_their_own_producer(store_url: str) -> None:
    observed = Quick(store_url)
    traces = [f"00-{number:032x}-{number:016x}-01" for number in range(1, COUNT + 1)]
    await run_plain(observed, traces=traces)
    assert observed.made_by_sdk("process plain") == 1
    found = [
        (span.context.trace_id, span.parent.span_id, span.links[0].context.span_id)
        for span in observed.spans("process plain")
        if span.context and span.parent
    ]
    assert found == [(number, number, number) for number in range(1, COUNT + 1)]


async def test_a_span_that_the_task_looks_at_is_the_sdks_own(store_url: str) -> None:
    observed = Quick(store_url)
    tracer = observed.provider.get_tracer("user")

    @observed.app.task(name="look")
    async def look(place: int) -> None:
        if place % 2:
            trace.get_current_span().set_attribute("place", place)
            with tracer.start_as_current_span("inner"):
                await asyncio.sleep(0)

    async with observed.app, observed.app.worker(concurrency=1):
        handles = await observed.app.aenqueue_many([look.using(trace=TRACE).job(place) for place in range(6)])
        for handle in handles:
            await handle.aresult(timeout=60)
    spans = observed.spans("process look")
    assert [(span.attributes or {}).get("place") for span in spans] == [None, 1, None, 3, None, 5]
    assert all((span.attributes or {})["headrace.outcome"] == "done" for span in spans)
    inner = observed.spans("inner")
    assert [span.parent.span_id for span in inner if span.parent] == [
        span.context.span_id for span in spans[1::2] if span.context
    ]
    for span, child in zip(spans[1::2], inner, strict=True):
        assert (span.start_time or 0) <= (child.start_time or 0) <= (child.end_time or 0) <= (span.end_time or 0)
    assert observed.made_by_sdk("process look") == 4


async def test_an_attempt_that_fails_is_marked_as_before(store_url: str) -> None:
    observed = Quick(store_url)

    @observed.app.task(name="fail", retry=Retry(max_attempts=1))
    async def fail(place: int) -> None:
        if place:
            raise LookupError(f"there is no {place}")

    async with observed.app, observed.app.worker(concurrency=1):
        handles = await observed.app.aenqueue_many([fail.using(trace=TRACE).job(place) for place in (0, 0, 7, 0)])
        for place, handle in enumerate(handles):
            with pytest.raises(JobDead) if place == 2 else nullcontext():
                await handle.aresult(timeout=60)
    spans = observed.spans("process fail")
    outcomes = [(span.attributes or {})["headrace.outcome"] for span in spans]
    assert outcomes == ["done", "done", "failed", "done"]
    failed = spans[2]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "LookupError"
    assert [(event.attributes or {})["exception.message"] for event in failed.events] == ["there is no 7"]


async def test_a_processor_that_wants_to_see_starts_sees_each_one(store_url: str) -> None:
    """Also one that is added when models are known already."""
    observed, aware = Quick(store_url), Aware()

    @observed.app.task(name="plain")
    async def plain() -> None: ...

    async with observed.app, observed.app.worker(concurrency=1):
        for _ in range(3):
            await (await plain.using(trace=TRACE).aenqueue()).aresult(timeout=60)
        assert observed.made_by_sdk("process plain") == 1
        observed.provider.add_span_processor(aware)
        for _ in range(3):
            await (await plain.using(trace=TRACE).aenqueue()).aresult(timeout=60)
    assert aware.started.count("process plain") == 3
    assert len(observed.spans("process plain")) == 6


async def test_an_sdk_that_counts_its_spans_makes_them(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    observed = Quick(store_url)
    await run_plain(observed)
    assert observed.made_by_sdk("process plain") == COUNT


@pytest.mark.parametrize(
    "limits", [SpanLimits(max_span_attribute_length=20), SpanLimits(max_span_attributes=4), SpanLimits(max_links=0)]
)
async def test_limits_of_the_sdk_hold(store_url: str, limits: SpanLimits) -> None:
    """An SDK that changes what it is given makes all spans itself."""
    observed = Quick(store_url, limits)
    await run_plain(observed, "acme")
    assert observed.made_by_sdk("process plain") == COUNT


async def test_a_long_tenant_may_exceed_a_limit_that_a_short_one_does_not(store_url: str) -> None:
    observed = Quick(store_url, SpanLimits(max_span_attribute_length=40))

    @observed.app.task(name="plain")
    async def plain() -> None: ...

    async with observed.app, observed.app.worker(concurrency=1):
        for tenant in ("acme", "acme", "a" * 50):
            await (await plain.using(trace=TRACE, tenant=tenant).aenqueue()).aresult(timeout=60)
    tenants = [(span.attributes or {})["headrace.tenant"] for span in observed.spans("process plain")]
    assert tenants == ["acme", "acme", "a" * 40]


async def test_code_that_outlives_the_attempt_sees_the_span_that_was_exported(store_url: str) -> None:
    observed = Quick(store_url)
    contexts: list[Context] = []

    @observed.app.task(name="plain")
    async def plain() -> None:
        contexts.append(context.get_current())

    async with observed.app, observed.app.worker(concurrency=1):
        for _ in range(3):
            await (await plain.using(trace=TRACE).aenqueue()).aresult(timeout=60)
    seen = [trace.get_current_span(each) for each in contexts]
    assert not any(span.is_recording() for span in seen)
    exported = [span.context for span in observed.spans("process plain")]
    assert [span.get_span_context() for span in seen] == exported
    assert observed.made_by_sdk("process plain") == 1


async def test_threads_that_look_at_the_same_time_see_one_span(store_url: str) -> None:
    observed = Quick(store_url)
    seen: list[set[int]] = []

    @observed.app.task(name="plain")
    def plain() -> None:
        here, gate, ids = context.get_current(), threading.Barrier(4), list[int]()

        def look() -> None:
            gate.wait()
            ids.append(trace.get_current_span(here).get_span_context().span_id)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 4
        seen.append(set(ids))

    async with observed.app, observed.app.worker(concurrency=1):
        for _ in range(8):
            await (await plain.using(trace=TRACE).aenqueue()).aresult(timeout=60)
    exported = [{span.context.span_id} for span in observed.spans("process plain") if span.context]
    assert seen == exported


async def test_the_trace_of_the_job_is_seen_by_the_task(store_url: str) -> None:
    observed = Quick(store_url)
    seen: list[str | None] = []

    @observed.app.task(name="plain")
    async def plain() -> None:
        seen.append(current_job().trace)

    async with observed.app, observed.app.worker():
        for _ in range(3):
            await (await plain.using(trace=TRACE).aenqueue()).aresult(timeout=60)
    assert seen == [TRACE] * 3
    assert {f"{span.context.trace_id:032x}" for span in observed.spans("process plain") if span.context} == {TRACE_ID}


async def test_attempts_in_a_process_have_the_same_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(otel_tasks.FOLDER, str(tmp_path))
    app = otel_tasks.app
    monkeypatch.setattr(app, "settings", app.settings.replace(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    async with app, app.worker(app="integrations.otel_tasks:app", concurrency=1):
        jobs = [otel_tasks.quiet_in_child.using(trace=TRACE).job() for _ in range(6)]
        for handle in await app.aenqueue_many(jobs):
            await handle.aresult(timeout=120)
    spans = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    attempts = [span for span in spans if span["name"] == "process quiet_in_child"]
    assert len({span["context"]["span_id"] for span in attempts}) == 6
    assert {span["parent_id"] for span in attempts} == {f"0x{SPAN_ID}"}
    assert [[link["context"]["span_id"] for link in span["links"]] for span in attempts] == [[f"0x{SPAN_ID}"]] * 6
    assert {span["attributes"]["headrace.outcome"] for span in attempts} == {"done"}
    assert os.getpid() not in {span["pid"] for span in attempts}
