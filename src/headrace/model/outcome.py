"""Outcomes: how an attempt ended; settlements: what follows; exceptions by which a task chooses its outcome."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from headrace.model import duration
from headrace.model.gate import NewGate, Wait
from headrace.model.job import Due, Failure, JobState

# ── what a task may raise ────────────────────────────────────────────────────


class TaskSignal(Exception):
    """The base of the exceptions that a task raises to end its attempt on purpose."""


class Snooze(TaskSignal):
    """Run this job again later, without a failure. `Snooze("5m")`, `Snooze(300)` in seconds, or an aware datetime."""

    def __init__(self, until: duration.Duration | float | datetime) -> None:
        super().__init__(until)
        self.due: timedelta | datetime = (
            duration.check_near(until, name="Snooze")
            if isinstance(until, datetime)
            else duration.given_or_seconds(until, name="Snooze")
        )
        """The delay, or the time, after which the job may run again."""


class RetryAfter(TaskSignal):
    """This attempt failed. Try again after exactly this delay, not after the policy's backoff.

    `RetryAfter("30s")`, or `RetryAfter(30)` in seconds, as in an API's `Retry-After` header.
    """

    def __init__(self, after: duration.Duration | float, reason: str = "") -> None:
        self.delay = duration.given_or_seconds(after, name="RetryAfter")
        """The delay before the next attempt."""
        super().__init__(reason or f"retry after {duration.show(self.delay)}")


class Cancel(TaskSignal):
    """End the job as cancelled: nothing is left to do. The reason may be any object, such as an exception."""

    reason: str = ""
    """Why nothing is left to do. The job keeps it as its note."""

    def __init__(self, reason: object = "") -> None:
        self.reason = text_of(reason)
        super().__init__(self.reason)


class Dead(TaskSignal):
    """End the job as dead, even if attempts are left, because it can never succeed. The reason may be any object."""

    reason: str = ""
    """Why the job can never succeed. The job keeps it as its note."""

    def __init__(self, reason: object = "") -> None:
        self.reason = text_of(reason)
        super().__init__(self.reason)


def text_of(value: object) -> str:
    """The text of a user's object, even if its methods raise. An exception without a text gives its name."""
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
    """The delay that the task asked for."""
    final: bool = False
    """Do not retry: the task raised `Fatal`, or its policy excludes this exception."""
    reason: str = ""
    """Why it is final, for the dead letter."""


EXPIRED = "expired"
"""The note of a job that was cancelled because it had expired."""


PARKED = "no worker here knows task"
"""The start of the note of a job that a worker put off because it does not know the task."""


PAUSED = "its task is paused"
"""The start of the note of a job that a worker put off because its task is paused."""


ASLEEP = "its task sleeps until"
"""The start of the note of a job whose task sleeps."""


AWAITS = "its task waits for"
"""The start of the note of a job whose task waits for an event."""


class Snoozed(msgspec.Struct, frozen=True):
    due: timedelta | datetime | None
    """None: only a gate ends the wait."""
    note: str | None = None
    gates: tuple[NewGate, ...] = ()
    """Gates to make before the job waits."""
    waits: tuple[Wait, ...] = ()
    """The job runs again when the first of these gates has opened, and at `due` at the latest."""


class Cancelled(msgspec.Struct, frozen=True):
    reason: str = ""


class Released(msgspec.Struct, frozen=True):
    """The worker handed the job back: it drains, or it never started the job."""

    suspect: bool = False
    """The job was claimed as a suspect and has not run to its end, so it stays a suspect."""


class Lost(msgspec.Struct, frozen=True):
    """The worker died while it held the job."""

    cause: str
    own: bool
    """The job ran alone, so the crash counts against it. Otherwise it becomes a suspect."""
    at: datetime


Outcome = Succeeded | Failed | Snoozed | Cancelled | Released | Lost

# ── what follows ─────────────────────────────────────────────────────────────

Ending = Literal[JobState.DONE, JobState.DEAD, JobState.CANCELLED]


class Finish(msgspec.Struct, frozen=True):
    """The job has ended."""

    state: Ending
    result: bytes | None = None
    result_ttl: timedelta | None = None
    """None: as long as the job itself is kept. With zero, the job shows that its result has expired."""
    note: str | None = None
    failure: Failure | None = None
    failures: int | None = None
    """The new count. None: unchanged."""
    crashes: int | None = None


class Again(msgspec.Struct, frozen=True):
    """The job goes back: ready at its old place in its lane, scheduled, or blocked."""

    failures: int
    crashes: int
    due: Due = None
    suspect: bool = False
    """The job is claimed alone."""
    note: str | None = None
    failure: Failure | None = None
    gates: tuple[NewGate, ...] = ()
    """Gates to make before the job waits."""
    waits: tuple[Wait, ...] = ()
    """Blocked until the first of these gates has opened, and until `due` at the latest."""


Settlement = Finish | Again

DONE = Finish(JobState.DONE)
"""Shared by every job that succeeds and returns nothing."""
