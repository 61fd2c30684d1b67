"""One log line for the claim, the start and the end of each job, at a level of the operator's choice."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

from headrace.model.job import Claimed
from headrace.model.outcome import Cancelled, Outcome, Released, Snoozed, Succeeded
from headrace.policy.explain.sentences import line
from headrace.runtime.logs import trace_id
from headrace.task.codec import readable_options

_claimed = logging.getLogger("headrace.job.claimed")
_started = logging.getLogger("headrace.job.started")
_ended = logging.getLogger("headrace.job.ended")


class JobLog:
    """Logs claims, starts and good ends. `failure_log` has the lines for failures and deaths."""

    __slots__ = ("_level", "on")

    def __init__(self, level: str) -> None:
        self._level = logging.getLevelNamesMapping()[level.upper()]
        self.on = False
        """Whether the log takes such lines, as of the last lease."""

    def refresh(self) -> bool:
        level = self._level
        self.on = _started.isEnabledFor(level) or _ended.isEnabledFor(level) or _claimed.isEnabledFor(level)
        return self.on

    def claimed(self, jobs: Sequence[Claimed], worker: str) -> None:
        """A worker has claimed these jobs."""
        for job in jobs:
            extra = {**fields_of("job.claimed", job), "worker": worker}
            text = "job %s of task %s was claimed by %s, attempt %d"
            _claimed.log(self._level, text, job.id, job.task, worker, job.attempt, extra=extra)

    def started(self, job: Claimed) -> None:
        """An attempt starts. Called from any thread."""
        if self.on:
            text = "job %s of task %s started, attempt %d"
            _started.log(self._level, text, job.id, job.task, job.attempt, extra=fields_of("attempt.started", job))

    def ended(self, job: Claimed, outcome: Outcome, started: float) -> None:
        """An attempt ended. `started`: on the monotonic clock; 0: it did not start."""
        match outcome:
            case Succeeded():
                how = "succeeded"
            case Snoozed():
                how = "was put off by its task"
            case Cancelled(reason=reason):
                how = f"was cancelled ({printable(line(reason))})" if reason else "was cancelled"
            case Released():
                how = "was handed back"
            case _:
                return
        seconds = monotonic() - started if started else 0.0
        extra = {
            **fields_of("attempt.ended", job),
            "outcome": type(outcome).__name__.lower(),
            "seconds": round(seconds, 6),
        }
        text = "job %s of task %s %s after %.3f s, attempt %d"
        _ended.log(self._level, text, job.id, job.task, how, seconds, job.attempt, extra=extra)


def fields_of(event: str, job: Claimed) -> dict[str, object]:
    """What every line about a job has beside its text."""
    return {
        "event": event,
        "job_id": str(job.id),
        "task": job.task,
        "attempt": job.attempt,
        "tenant": job.tenant,
        "queue": job.queue,
        "trace_id": trace_id(readable_options(job.options).trace),
    }


def printable(text: str) -> str:
    """A text that a terminal can show."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)
