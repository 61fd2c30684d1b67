"""Outcomes: how an attempt ended; settlements: what follows; and the exceptions by which a task says so itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from headrace.model import duration
from headrace.model.job import Due, Failure, JobState

# ── what a task may raise ────────────────────────────────────────────────────


class TaskSignal(Exception):
    """The base of what a task raises to end its attempt on purpose."""


class Snooze(TaskSignal):
    """Run me again later; this is no failure. `Snooze("5m")`, `Snooze(300)` in seconds, or until an aware datetime."""

    def __init__(self, until: duration.Duration | float | datetime) -> None:
        super().__init__(until)
        self.due: timedelta | datetime = (
            duration.check_near(until, name="Snooze")
            if isinstance(until, datetime)
            else duration.given_or_seconds(until, name="Snooze")
        )


class RetryAfter(TaskSignal):
    """This attempt failed; try again after exactly so long, not after the policy's backoff.

    `RetryAfter("30s")`, or `RetryAfter(30)`: in seconds, as an API's answer has it.
    """

    def __init__(self, after: duration.Duration | float, reason: str = "") -> None:
        self.delay = duration.given_or_seconds(after, name="RetryAfter")
        super().__init__(reason or f"retry after {duration.show(self.delay)}")


class Cancel(TaskSignal):
    """Nothing to do any more: end the job as cancelled. The reason may be any object, such as an exception."""

    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        self.reason = text_of(reason)
        super().__init__(self.reason)


class Dead(TaskSignal):
    """This can never work: end the job as dead, whatever attempts are left. The reason may be any object."""

    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        self.reason = text_of(reason)
        super().__init__(self.reason)


def text_of(value: object) -> str:
    """The text of a user's object, whatever its own methods do; an exception without a text gives its name."""
    try:
        text = str(value)
    except Exception as broken:  # noqa: BLE001  # a user's object may do anything while it is shown
        return f"<{type(value).__qualname__}: its text cannot be read: {type(broken).__qualname__}>"
    return text or (type(value).__qualname__ if isinstance(value, BaseException) else "")


# ── how an attempt ended ─────────────────────────────────────────────────────


class Succeeded(msgspec.Struct, frozen=True):
    result: bytes | None = None


class Failed(msgspec.Struct, frozen=True):
    failure: Failure
    retry_after: timedelta | None = None
    """The task asked for exactly this delay."""
    final: bool = False
    """Retrying cannot help: the task said so, or its policy does for this exception."""
    reason: str = ""
    """Why it is final, for the dead letter."""


EXPIRED = "expired"
"""The note of a job that was cancelled because the time in which it might start was over."""


PARKED = "no worker here knows task"
"""How the note of a job begins that a worker put off because it does not know the task."""


PAUSED = "its task is paused"
"""How the note of a job begins that a worker put off because somebody has paused its task."""


class Snoozed(msgspec.Struct, frozen=True):
    due: timedelta | datetime
    note: str | None = None


class Cancelled(msgspec.Struct, frozen=True):
    reason: str = ""


class Released(msgspec.Struct, frozen=True):
    """Handed back unfinished by a worker that drains, or never started."""

    suspect: bool = False
    """It was claimed as a suspect and has not been cleared: it stays one."""


class Lost(msgspec.Struct, frozen=True):
    """The worker died with the job in its hands."""

    cause: str
    own: bool
    """The job was alone, so the crash is its own; otherwise it comes back as a suspect."""
    at: datetime


Outcome = Succeeded | Failed | Snoozed | Cancelled | Released | Lost

# ── what follows ─────────────────────────────────────────────────────────────

Ending = Literal[JobState.DONE, JobState.DEAD, JobState.CANCELLED]


class Finish(msgspec.Struct, frozen=True):
    """The job is over."""

    state: Ending
    result: bytes | None = None
    result_ttl: timedelta | None = None
    """None: as long as the job itself is kept. With zero the job shows that there was a result which is over."""
    note: str | None = None
    failure: Failure | None = None
    failures: int | None = None
    """The count to keep; None: as it was."""
    crashes: int | None = None


class Again(msgspec.Struct, frozen=True):
    """The job goes back: ready at once at its old place in its lane, or scheduled."""

    failures: int
    crashes: int
    due: Due = None
    suspect: bool = False
    """To be claimed alone."""
    note: str | None = None
    failure: Failure | None = None


Settlement = Finish | Again

DONE = Finish(JobState.DONE)
"""Shared by every job that ends well and returns nothing."""
