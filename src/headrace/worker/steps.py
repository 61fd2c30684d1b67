"""What every kind of slot does around an attempt: announce its start, publish its deadline, and end it in any case."""

from __future__ import annotations

from collections.abc import Callable

from headrace.model.outcome import Outcome
from headrace.worker import outcome_of
from headrace.worker.attempt import Attempt
from headrace.worker.service import log
from headrace.worker.state import WorkerState

End = Callable[[Attempt, Outcome], None]


def end_safely(end: End, attempt: Attempt, outcome: Outcome) -> None:
    """End an attempt. If its outcome cannot be processed, the attempt fails."""
    try:
        end(attempt, outcome)
    except Exception as error:  # noqa: BLE001  # its slot goes on
        log.exception("the outcome of job %s cannot be processed: the attempt fails", attempt.job.id)
        end_as_failed(end, attempt, error)


def announce(state: WorkerState, attempt: Attempt) -> None:
    """Log the start, and tell the listeners. Runs in the event loop."""
    state.job_log.started(attempt.job)
    tell_start(state, attempt)


def tell_start(state: WorkerState, attempt: Attempt) -> None:
    """Tell the listeners that it starts. Runs in the event loop."""
    job = attempt.job
    state.emit("attempt.started", id=job.id, task=job.task, queue=job.queue, attempt=job.attempt)


def end_as_failed(end: End, attempt: Attempt, error: BaseException) -> None:
    """An error escaped while an attempt ended. Its job fails, unless it has its outcome already."""
    held, position = attempt.held, attempt.position
    if held.attempts[position] is not attempt:
        return
    try:
        end(attempt, outcome_of.of_error(attempt, error))
    except Exception:  # noqa: BLE001  # its slot goes on
        log.exception("job %s cannot be settled: it runs again when its lease has expired", attempt.job.id)
        held.attempts[position] = None


def set_deadline(state: WorkerState, attempt: Attempt, deadline: float) -> None:
    """Set the deadline, also on the shared page, in case this attempt blocks the event loop."""
    attempt.deadline = deadline
    page = state.page
    if page is not None and deadline < page.deadline:
        page.write_deadline(deadline)
