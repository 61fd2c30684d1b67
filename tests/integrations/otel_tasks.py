"""An app with OpenTelemetry and Sentry whose process tasks run in a child, which imports this module.

Each process appends its spans and its events to files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from headrace import Headrace, Retry
from headrace.integrations import otel, sentry

FOLDER = "HEADRACE_TEST_TELEMETRY"
"""The environment variable that names the folder of the files."""


def note(file: str, record: Any) -> None:
    with (Path(os.environ[FOLDER]) / file).open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


class FileExporter(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        for span in spans:
            assert isinstance(span, ReadableSpan)
            note("spans", json.loads(span.to_json(indent=None)) | {"pid": os.getpid()})
        return SpanExportResult.SUCCESS


class FileTransport(Transport):
    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            note("events", {"tags": event.get("tags"), "fingerprint": event.get("fingerprint"), "pid": os.getpid()})


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
app = Headrace()
otel.instrument(app, provider)
sentry.instrument(app)
sentry_client = sentry_sdk.Client(
    dsn="https://public@sentry.example.com/1", transport=FileTransport, default_integrations=False
)


def in_child_body() -> str:
    with provider.get_tracer("user").start_as_current_span("inner"):
        return format(trace.get_current_span().get_span_context().trace_id, "032x")


in_child = app.task(name="in_child", executor="process")(in_child_body)


@app.task(name="in_child_async", executor="process")
async def in_child_async() -> str:
    return format(trace.get_current_span().get_span_context().trace_id, "032x")


@app.task(name="quiet_in_child", executor="process")
def quiet_in_child() -> None: ...


@app.task(name="fails_in_child", executor="process", retry=Retry(max_attempts=1))
def fails_in_child() -> None:
    sentry_sdk.get_global_scope().set_client(sentry_client)
    raise ValueError("in a child")
