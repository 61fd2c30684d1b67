"""Jobs as Django's tasks framework shows them: `TaskResult`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.integrations.django.frame import TaskError, TaskResult, TaskResultStatus
from headrace.model.job import Failure, Job, JobState
from headrace.task.codec import Signature
from headrace.task.context import JobContext

_STATUS = {
    JobState.READY: "READY",
    JobState.SCHEDULED: "READY",
    JobState.BLOCKED: "READY",
    JobState.RUNNING: "RUNNING",
    JobState.DONE: "SUCCESSFUL",
    JobState.DEAD: "FAILED",
    JobState.CANCELLED: "FAILED",
}
_NO_EXCEPTION = {"timeout": "builtins.TimeoutError", "worker_lost": "headrace.errors.LeaseLost"}


def fresh(task: Any, id: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, backend: str) -> Any:
    """The result of a job to be enqueued. Raises TypeError if an argument is not JSON."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def under_way(
    task: Any, job: JobContext, args: Sequence[Any], kwargs: Mapping[str, Any], *, backend: str, now: datetime
) -> Any:
    """The result of the job that the calling thread runs."""
    result = fresh(task, str(job.id), args, kwargs, backend=backend)
    # One entry for each attempt, because Django counts the entries.
    result.worker_ids.extend([""] * job.attempt)
    return put(
        result, status=TaskResultStatus.RUNNING, enqueued_at=job.enqueued_at, started_at=now, last_attempted_at=now
    )


def of_job(task: Any, job: Job, codec: Signature, *, backend: str) -> Any:
    """The result of a stored job."""
    args, kwargs = codec.decode(job.payload)
    result = fresh(task, str(job.id), args, kwargs, backend=backend)
    result.errors.extend(_error(failure) for failure in job.history)
    by_attempt = {failure.attempt: failure.worker for failure in job.history}
    if job.worker is not None:
        by_attempt.setdefault(job.attempt, job.worker_name or str(job.worker))
    result.worker_ids.extend(by_attempt.get(attempt, "") for attempt in range(1, job.attempt + 1))
    first = min((failure.at for failure in job.history), default=job.claimed_at)
    last = job.claimed_at or max((failure.at for failure in job.history), default=None)
    return put(
        result,
        status=TaskResultStatus[_STATUS[job.state]],
        enqueued_at=job.enqueued_at,
        # The store keeps only the start time of the last attempt.
        started_at=first or job.finished_at,
        last_attempted_at=last or job.finished_at,
        finished_at=job.finished_at,
        _return_value=codec.decode_result(job.result),
    )


def put(result: Any, **fields: Any) -> Any:
    """Change a result, which only its backend may do."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
    return result


def _error(failure: Failure) -> Any:
    kind = failure.kind
    if isinstance(getattr(builtins, kind, None), type):
        kind = f"builtins.{kind}"
    return TaskError(exception_class_path=_NO_EXCEPTION.get(kind, kind), traceback=failure.traceback)
