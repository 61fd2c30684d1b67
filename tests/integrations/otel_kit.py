"""An app with OpenTelemetry for tests, and what it exports."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import Headrace
from headrace.integrations import otel

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = f"00-{TRACE_ID}-{SPAN_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00"


class Observed:
    """An app with OpenTelemetry, and what it exports."""

    def __init__(self, url: str, provider: TracerProvider | None = None) -> None:
        self.spans_out, self.metrics_out = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = provider or TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans_out))
        self.app = Headrace(url)
        otel.instrument(self.app, self.provider, MeterProvider([self.metrics_out], shutdown_on_exit=False))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans_out.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, list[Any]]:
        found = self.metrics_out.get_metrics_data()
        assert found is not None
        metrics = found.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    def ends(self) -> dict[tuple[str, str, str], int]:
        """(task, outcome, kind of failure) → attempts, as they are counted."""
        return {
            (
                point.attributes["headrace.task"],
                point.attributes["headrace.outcome"],
                point.attributes.get("error.type", ""),
            ): point.value
            for point in self.points()["messaging.client.consumed.messages"]
        }
