"""Which resources there are; each file has its `ENDPOINTS`. Routes, the OpenAPI document and the scope matrix go by this list."""

from __future__ import annotations

from headrace.server import (
    audit,
    batch,
    bulk,
    dead,
    docs,
    events,
    health,
    jobs,
    limits,
    one,
    openapi,
    pauses,
    queues,
    results,
    schedules,
    short,
    stats,
    storeverbs,
    tasks,
    work,
    workers,
)
from headrace.server.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *jobs.ENDPOINTS,
    *batch.ENDPOINTS,
    *short.ENDPOINTS,
    *one.ENDPOINTS,
    *results.ENDPOINTS,
    *events.ENDPOINTS,
    *bulk.ENDPOINTS,
    *dead.ENDPOINTS,
    *queues.ENDPOINTS,
    *pauses.ENDPOINTS,
    *workers.ENDPOINTS,
    *work.ENDPOINTS,
    *storeverbs.ENDPOINTS,
    *schedules.ENDPOINTS,
    *limits.ENDPOINTS,
    *tasks.ENDPOINTS,
    *stats.ENDPOINTS,
    *audit.ENDPOINTS,
    *health.ENDPOINTS,
    *openapi.ENDPOINTS,
    *docs.ENDPOINTS,
)
