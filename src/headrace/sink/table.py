"""The table of ClickHouse, and its rows: one for each end of a job. Arguments, results and messages are not in it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from headrace.model.job import Job, JobState
from headrace.model.records import Ending
from headrace.policy import fingerprint

CREATE: Final = """CREATE TABLE IF NOT EXISTS {database}.{table} (
    id UUID,
    queue LowCardinality(String),
    task LowCardinality(String),
    tenant String,
    priority Int16,
    state Enum8('done' = 1, 'dead' = 2, 'cancelled' = 3),
    attempt UInt32,
    failures UInt32,
    enqueued_at Nullable(DateTime64(6, 'UTC')),
    started_at Nullable(DateTime64(6, 'UTC')),
    ended_at DateTime64(6, 'UTC'),
    wait_ms Nullable(Float64),
    run_ms Nullable(Float64),
    error LowCardinality(String),
    fingerprint String,
    worker LowCardinality(String),
    known UInt8
)
ENGINE = ReplacingMergeTree(known)
PARTITION BY toYYYYMM(ended_at)
ORDER BY (queue, task, ended_at, id)
SETTINGS non_replicated_deduplication_window = 100
"""
"""Rows with the same queue, task, end and id are the same row. `docs/operate/history.md` shows the statement."""
INSERT: Final = "INSERT INTO {database}.{table} FORMAT JSONEachRow"

_MILLISECOND = timedelta(milliseconds=1)
_encode = msgspec.json.Encoder().encode


class EndRow(msgspec.Struct, kw_only=True, gc=False):
    """One end of one job."""

    id: UUID
    queue: str
    task: str
    tenant: str
    priority: int = 0
    state: JobState
    attempt: int = 0
    failures: int = 0
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    """When the last attempt began."""
    ended_at: datetime
    wait_ms: float | None = None
    """From the enqueue to the start of the first attempt. None: there were none, or several."""
    run_ms: float | None = None
    """From the start of the last attempt to the end."""
    error: str = ""
    """The kind of the last failure of a dead job."""
    fingerprint: str = ""
    """As `headrace dead groups` shows it."""
    worker: str = ""
    known: int = 0
    """1: the store still had the job. 0: it was deleted, pruned or retried before the sink read it."""


def row(ending: Ending, job: Job | None) -> bytes:
    """The row as a line of JSON. `job` is what the store has of the job now."""
    ended = EndRow(
        id=ending.id,
        queue=ending.queue,
        task=ending.task,
        tenant=ending.tenant,
        state=ending.state,
        ended_at=ending.at,
    )
    if job is not None and job.state is ending.state and job.finished_at == ending.at:
        ended.known = 1
        ended.priority, ended.attempt, ended.failures = job.priority, job.attempt, job.failures
        ended.enqueued_at, ended.started_at = job.enqueued_at, job.claimed_at
        ended.worker = job.worker_name or ""
        if job.claimed_at is not None:
            ended.run_ms = (ending.at - job.claimed_at) / _MILLISECOND
            if job.attempt == 1:
                ended.wait_ms = (job.claimed_at - job.enqueued_at) / _MILLISECOND
        if job.state is JobState.DEAD:
            ended.error = job.history[-1].kind if job.history else ""
            ended.fingerprint = fingerprint.of_job(job).id
    return _encode(ended)
