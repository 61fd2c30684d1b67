"""One log line for each failed attempt and each dead job, at a bounded rate."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from time import monotonic

from headrace.model import duration
from headrace.model.job import Claimed, Failure, JobState
from headrace.model.outcome import Again, Finish, Settlement
from headrace.policy.explain.sentences import line
from headrace.worker.job_log import fields_of, printable

_failed = logging.getLogger("headrace.job.failed")
_dead = logging.getLogger("headrace.job.dead")

BURST, PER_SECOND = 50.0, 10.0
"""Lines of each level at once, and then per second. Many failing workers must not fill the disk."""


class _Rate:
    """Passes a bounded number of lines and counts the others, for the next line that passes."""

    __slots__ = ("_at", "_left", "hidden")

    def __init__(self) -> None:
        self._left = BURST
        self._at = monotonic()
        self.hidden = 0

    def allows(self) -> bool:
        if self._left < 1.0:
            now = monotonic()
            self._left = min(BURST, self._left + (now - self._at) * PER_SECOND)
            self._at = now
            if self._left < 1.0:
                self.hidden += 1
                return False
        self._left -= 1.0
        return True

    def take_hidden(self) -> str:
        hidden, self.hidden = self.hidden, 0
        return f" (and {hidden:,} more that are not in this log)" if hidden else ""


class FailureLog:
    """Logs a failure with its error and next try, and a death with its traceback. Callers mask the texts first."""

    def __init__(self) -> None:
        self._failed, self._dead = _Rate(), _Rate()

    def tell(self, job: Claimed, settlement: Settlement) -> None:
        """Log the outcome if it is a failure or a death."""
        if isinstance(settlement, Again):
            failure = settlement.failure
            if failure is not None and _failed.isEnabledFor(logging.WARNING) and self._failed.allows():
                self._say_failed(job, failure, settlement.due)
        elif settlement.state is JobState.DEAD and self._dead.allows():
            self._say_dead(job, settlement)

    def _say_failed(self, job: Claimed, failure: Failure, due: object) -> None:
        when = "at once" if not due else f"in {duration.about(due)}" if isinstance(due, timedelta) else f"at {due}"
        _failed.warning(
            "job %s of task %s failed on attempt %d: %s; next try %s%s",
            job.id,
            job.task,
            job.attempt,
            shown(failure),
            when,
            self._failed.take_hidden(),
            extra={**_extra("attempt.failed", job, failure), **_next_try(due)},
        )

    def _say_dead(self, job: Claimed, settlement: Finish) -> None:
        failure = settlement.failure
        _dead.error(
            "job %s of task %s is dead (%s) after attempt %d%s%s%s",
            job.id,
            job.task,
            line(printable(settlement.note or "")),
            job.attempt,
            "" if failure is None else f": {shown(failure)}",
            self._dead.take_hidden(),
            "" if failure is None or not failure.traceback else f"\n{failure.traceback.rstrip()}",
            extra=_extra("job.dead", job, failure),
        )


def shown(failure: Failure) -> str:
    """A failure on one line that a terminal can show."""
    return line(printable(f"{failure.kind}: {failure.message}" if failure.message else failure.kind))


def _next_try(due: object) -> dict[str, object]:
    """When the job runs again: the seconds until then, or the time."""
    if isinstance(due, datetime):
        return {"retry_at": due.isoformat()}
    return {"retry_in": due.total_seconds() if isinstance(due, timedelta) else 0.0}


def _extra(event: str, job: Claimed, failure: Failure | None) -> dict[str, object]:
    return {**fields_of(event, job), "kind": "" if failure is None else failure.kind}
