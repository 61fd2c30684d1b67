"""The processes of a run from the repository: `python -m benchmarks.member`. They also write the raw rows of a floor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from benchmarks import floors
from benchmarks.floors.base import Rows
from benchmarks.hash_layout import HashLayoutApp
from headrace.app import Headrace
from headrace.bench.load import Load
from headrace.bench.member import main
from headrace.bench.roles import BULK, Line, Role, RoleName, RoleReport, Spec
from headrace.bench.workflow_roles import ROLES
from headrace.integrations import otel

SETTLE = 500
"""Done rows per floor write: what a busy worker settles at once."""
LAYOUTS: Mapping[str, Callable[[str], Headrace]] = {"redis": HashLayoutApp}
"""By engine: an app that stores jobs there in the layout that queues usually have, where the store uses another one."""


async def floor(spec: Spec, _load: Load, line: Line) -> RoleReport:
    """Write the rows of `count` jobs without any queue."""
    base = floors.of(spec.engine, spec.url)
    assert base is not None  # a run asks only engines that have one
    async with base.connection() as connection:
        await connection.one()  # prepares what can be prepared
        await line.ready()
        samples: list[float] = []
        began = time.monotonic()
        match spec.role:
            case "floor_jobs":
                await connection.jobs(spec.count, BULK)
            case "floor_done":
                await connection.done(spec.count, SETTLE)
            case _:
                for _ in range(spec.count):
                    before = time.monotonic()
                    await connection.one()
                    samples.append(time.monotonic() - before)
        return RoleReport(began=began, ended=time.monotonic(), samples=samples)


async def floor_steps(spec: Spec, _load: Load, line: Line) -> RoleReport:
    """Write `parts` rows one after the other on each of `count` connections."""
    base = floors.of(spec.engine, spec.url)
    assert base is not None
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(base.connection()) for _ in range(spec.count)]
        await asyncio.gather(*(connection.one() for connection in connections))
        await line.ready()
        began = time.monotonic()

        async def rows(connection: Rows) -> None:
            for _ in range(spec.parts):
                await connection.one()

        await asyncio.gather(*map(rows, connections))
        return RoleReport(began=began, ended=time.monotonic())


class Discard(SpanExporter):
    """Takes spans and sends them nowhere, because the network is not measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        return SpanExportResult.SUCCESS


class DiscardMetrics(MetricExporter):
    """The same for metrics."""

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:
        del metrics_data, timeout_millis
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None: ...


def trace(app: Headrace, share: float) -> None:
    """Trace an app as an application does: sampled where the trace begins, exported in batches by a thread."""
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    provider.add_span_processor(BatchSpanProcessor(Discard()))
    otel.instrument(app, provider, MeterProvider([PeriodicExportingMetricReader(DiscardMetrics())]))


ALL_ROLES: Mapping[RoleName, Role] = {
    **ROLES,
    "floor_jobs": floor,
    "floor_done": floor,
    "floor_single": floor,
    "floor_steps": floor_steps,
}

if __name__ == "__main__":
    main(ALL_ROLES, LAYOUTS, trace)
