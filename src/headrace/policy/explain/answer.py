"""The answer to why a job does not run: a word for programs, a sentence for people, and a time."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec


class Reason(StrEnum):
    """Why a job is not running, in one word for programs. Later versions may add words."""

    DONE = "done"
    """It has succeeded."""
    DEAD = "dead"
    """It has failed and is not tried again."""
    CANCELLED = "cancelled"
    """It was cancelled."""
    RUNNING = "running"
    """A worker runs it."""
    CANCELLING = "cancelling"
    """Running, and asked to stop."""
    BLOCKED = "blocked"
    """It waits for other jobs to end, or for an event."""
    SCHEDULED = "scheduled"
    """It waits for its time."""
    ASLEEP = "asleep"
    """Its task sleeps, and continues at that time."""
    RETRYING = "retrying"
    """It failed and waits for its next attempt."""
    PARKED = "parked"
    """Put off because the worker that had it does not know its task."""
    EXPIRED = "expired"
    """It may not start any more: the next worker that claims it ends it."""
    PAUSED = "paused"
    """Its queue, its tenant or its task."""
    CLOSED = "closed"
    """Its queue is outside its open hours."""
    LIMITED = "limited"
    """A limit that it needs is full, used up for now, or closed."""
    NO_WORKER = "no_worker"
    """No live worker serves its queue."""
    UNKNOWN_TASK = "unknown_task"
    """Live workers serve its queue, none knows its task."""
    BEHIND = "behind"
    """Other jobs come first."""
    SUSPECT = "suspect"
    """Next in line, but claimed alone."""
    BUSY = "busy"
    """Next in line, but every slot is taken."""
    HINDERED = "hindered"
    """Next in line, but the workers that have free slots claim nothing now."""
    NEXT = "next"
    """It is next in line and starts at once."""


class HelpfulAction(msgspec.Struct, frozen=True):
    """An action of an operator that ends the reason."""

    action: Literal["resume", "open", "retry"]
    """What to do: resume a pause, open a limit, or make a job ready now."""
    kind: Literal["queue", "tenant", "task", "limit", "job"]
    """What it is done to."""
    name: str
    """The name of the queue, tenant, task or limit, or the id of the job."""
    label: str
    """The action in a few words, for a button."""
    safe: bool
    """Whether it can do no harm. If not, read the sentence first."""
    command: str
    """The same on the command line."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a job does not run: `str()` of it is the sentence."""

    reason: Reason
    """The reason as a word, for programs."""
    sentence: str
    """The explanation in a sentence, with the command that helps."""
    until: datetime | None = None
    """When the reason ends, where that can be known."""
    details: dict[str, Any] = {}
    """The facts in the sentence."""
    help: tuple[HelpfulAction, ...] = ()
    """What an operator can do about it. Empty: nothing but to wait, to start workers or to change code."""

    def __str__(self) -> str:
        return self.sentence
