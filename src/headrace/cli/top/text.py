"""Rows and lines of `headrace top` as plain text, without characters that could move a terminal's cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.cli import show
from headrace.cli.board import Rates, rate
from headrace.cli.output import STYLES, age, clean, short, span
from headrace.model.duration import LONGEST
from headrace.model.job import Job, JobState
from headrace.model.short_id import shorten

if TYPE_CHECKING:
    from headrace.model.lease import Presence
    from headrace.model.records import QueueStats
    from headrace.operate.autoscale import QueueDemand
    from headrace.operate.dead.letters import Group

QUEUE_COLUMNS = (
    "queue",
    "waiting",
    "running",
    "later",
    "dead",
    "done/s",
    "failed/s",
    "p95 wait",
    "oldest",
    "drains in",
    "",
)
LIST_COLUMNS = {
    "running": ("job", "task", "queue", "tenant", "attempt", "for", "worker"),
    "workers": ("worker", "queues", "slots", "up", "seen", "memory", "hindered", "version"),
    "dead": ("dead", "last", "first", "tasks", "bug"),
}
JOB_COLUMNS = ("job", "task", "queue", "state", "attempt", "age", "note")
RIGHT = frozenset({*QUEUE_COLUMNS[1:-1], "attempt", "for", "slots", "up", "seen", "last", "first", "age"})
"""Columns whose cells are aligned to the right."""


class Row(NamedTuple):
    """One row of a table."""

    key: str
    """What the row stands for: a queue, a worker, a job or a bug."""
    cells: tuple[str, ...]
    style: str = ""


def queue_row(queue: QueueStats, rates: Rates | None, wait: float | None, demand: QueueDemand | None) -> Row:
    """One queue in figures."""
    drains = None if demand is None or not queue.ready else demand.seconds_to_drain
    cells = (
        clean(queue.queue),
        *(f"{count:,}" for count in (queue.ready, queue.running, queue.scheduled, queue.dead)),
        *((rate(rates.done), rate(rates.failed)) if rates else ("", "")),
        _seconds(wait),
        span(queue.oldest_ready, at_least=queue.oldest_at_least),
        _seconds(drains),
        "paused" if queue.paused else "",
    )
    return Row(queue.queue, cells, STYLES["paused"] if queue.paused else "")


def running_row(job: Job, names: Mapping[UUID, str], now: datetime) -> Row:
    """One running job. `names`: of workers, because a list of jobs has their ids only."""
    worker = "" if job.worker is None else names.get(job.worker, str(job.worker))
    cells = (
        shorten(job.id),
        short(job.task, 40),
        clean(job.queue),
        short(job.tenant or "", 20),
        str(job.attempt),
        age(job.claimed_at, now),
        short(worker, 40),
    )
    return Row(str(job.id), cells)


def worker_row(worker: Presence, now: datetime) -> Row:
    """One worker."""
    cells = (
        short(worker.name, 30),
        short(", ".join(worker.queues), 40),
        f"{worker.running}/{worker.slots}",
        age(worker.started_at, now),
        age(worker.seen_at, now),
        "" if worker.memory is None else f"{worker.memory >> 20:,} MB",
        short(", ".join(worker.hindered), 30),
        clean(worker.version),
    )
    return Row(str(worker.id), cells, STYLES["warning"] if worker.hindered else "")


def dead_row(group: Group, now: datetime) -> Row:
    """Dead jobs of one bug."""
    cells = (
        f"{group.count:,}",
        age(group.last_seen, now),
        age(group.first_seen, now),
        short(", ".join(group.tasks), 40),
        short(group.title, 120),
    )
    return Row(group.fingerprint, cells)


def job_row(job: Job, now: datetime) -> Row:
    """One job of any state, as `headrace jobs list` prints it on a terminal."""
    cells = tuple(clean(cell) for cell in show.cells(job, now))
    return Row(str(job.id), (shorten(job.id), *cells), STYLES[job.state.value])


_TOTALS = (
    ("waiting", "ready"),
    ("running", "running"),
    ("later", "scheduled"),
    ("blocked", "blocked"),
    ("dead", "dead"),
)


def totals(queues: Sequence[QueueStats], rates: Rates) -> str:
    """All these queues in one line."""
    counts = "  ".join(f"{title} {sum(getattr(queue, name) for queue in queues):,}" for title, name in _TOTALS)
    return f"{counts}  │  in/s {rate(rates.enqueued)}  done/s {rate(rates.done)}  failed/s {rate(rates.failed)}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else span(timedelta(seconds=min(seconds, LONGEST.total_seconds())))


STATES: tuple[JobState | None, ...] = (None, *JobState)
"""What a list of jobs can be narrowed to. None: all."""
