"""One log line for each job that a producer enqueues, at the level debug."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.model.job import JobId, NewJob
from headrace.runtime.logs import own_name, trace_id
from headrace.task.codec import readable_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client.bulk import Placed

_log = logging.getLogger("headrace.job.enqueued")


def is_on() -> bool:
    """Whether the log takes such lines. Producers ask once for each call, so that a job costs nothing."""
    return _log.isEnabledFor(logging.DEBUG)


def tell(job: NewJob, id: JobId, *, created: bool, by: str = "") -> None:
    """Log one job that the store has accepted. `by`: what enqueued it, if the job does not say so."""
    own = readable_options(job.options)
    tenant = job.lane.tenant or own.tenant or ""
    key = own.key if own.key is None or not tenant else own.key.removeprefix(f"{tenant} ")
    by = own.by or by or own_name()
    text = "job %s of task %s was enqueued in queue %s by %s%s"
    if not created:
        text = "job %s of task %s in queue %s exists, so that the call of %s enqueued nothing%s"
    _log.debug(
        text,
        id,
        job.task,
        job.lane.queue,
        by,
        "" if key is None else f" with the key {key!a}",
        extra={
            "event": "job.enqueued" if created else "job.exists",
            "job_id": str(id),
            "task": job.task,
            "tenant": tenant,
            "queue": job.lane.queue,
            "trace_id": trace_id(own.trace),
            "by": by,
            **({} if key is None else {"key": key}),
        },
    )


def tell_all(jobs: Sequence[NewJob], placed: Placed) -> None:
    """Log the jobs of one call, if the log takes such lines."""
    if is_on():
        for place, job in enumerate(jobs):
            id, created = placed.put(place)
            tell(job, id, created=created)
