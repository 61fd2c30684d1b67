"""OpenTelemetry: a span for each call that enqueues, a span for each attempt that continues its trace, and metrics.

Only the API of OpenTelemetry is used. Without an SDK the calls do nothing. Arguments and results never become
attributes. In messages and tracebacks of errors, values that the task redacts are masked.

`sampling.py` decides whether a span is needed, `attempts.py` and `sending.py` make the spans of workers and of producers,
`metrics.py` counts, and `contexts.py` continues traces that are not sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from opentelemetry.metrics import get_meter

from headrace import __version__
from headrace.errors import ConfigError
from headrace.integrations.otel.attempts import Attempts
from headrace.integrations.otel.metrics import AttemptMetrics, SendMetrics
from headrace.integrations.otel.sampling import NAME, Sampling
from headrace.integrations.otel.sending import SendTracer

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from headrace.app import Headrace

__all__ = ["instrument"]

_instrumented: WeakSet[Headrace] = WeakSet()


def instrument(
    app: Headrace, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and measure what the app enqueues and what its workers run: `instrument(app)`, once, beside the app.

    Call it where the app is declared, so that every process which imports the app has it. None: the global provider of
    OpenTelemetry.
    """
    if app in _instrumented:
        raise ConfigError("the app is instrumented already: call otel.instrument(app) once")
    _instrumented.add(app)
    meter = get_meter(NAME, __version__, meter_provider)
    sampling = Sampling(tracer_provider)
    app.on_enqueue(SendTracer(sampling, SendMetrics(meter)).around)
    app.hooks.tracer = Attempts(app, sampling)
    app.hooks.meter = AttemptMetrics(meter)
