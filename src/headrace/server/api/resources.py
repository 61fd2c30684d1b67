"""The list of resources; each file has its `ENDPOINTS`. Routes, the OpenAPI document and the scope matrix use it."""

from __future__ import annotations

from headrace.server.api import (
    audit,
    autoscale,
    batch,
    bulk,
    dead,
    enqueue_short,
    events,
    health,
    history,
    job,
    jobs,
    limits,
    metrics,
    pauses,
    queues,
    replays,
    results,
    schedules,
    session,
    stats,
    tasks,
    tokens,
    work,
    workers,
)
from headrace.server.http import dashboard, docs, openapi
from headrace.server.http.endpoint import Endpoint
from headrace.server.remote_store import verbs

ENDPOINTS: tuple[Endpoint, ...] = (
    *jobs.ENDPOINTS,
    *batch.ENDPOINTS,
    *enqueue_short.ENDPOINTS,
    *job.ENDPOINTS,
    *results.ENDPOINTS,
    *events.ENDPOINTS,
    *bulk.ENDPOINTS,
    *dead.ENDPOINTS,
    *replays.ENDPOINTS,
    *queues.ENDPOINTS,
    *pauses.ENDPOINTS,
    *workers.ENDPOINTS,
    *work.ENDPOINTS,
    *verbs.ENDPOINTS,
    *schedules.ENDPOINTS,
    *limits.ENDPOINTS,
    *tasks.ENDPOINTS,
    *stats.ENDPOINTS,
    *metrics.ENDPOINTS,
    *history.ENDPOINTS,
    *autoscale.ENDPOINTS,
    *audit.ENDPOINTS,
    *session.ENDPOINTS,
    *tokens.ENDPOINTS,
    *health.ENDPOINTS,
    *openapi.ENDPOINTS,
    *docs.ENDPOINTS,
    *dashboard.ENDPOINTS,
)
