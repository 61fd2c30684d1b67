"""Makes the outcome of an attempt from what its task did. It reads the clock and has no other effect."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import BadArguments, ResultError, ResultTooLarge, SerializationError, WaitTimeout
from headrace.model.job import Claimed, Failure
from headrace.model.outcome import (
    EXPIRED,
    PARKED,
    PAUSED,
    Cancel,
    Cancelled,
    Dead,
    Failed,
    Outcome,
    Released,
    RetryAfter,
    Snooze,
    Snoozed,
    Succeeded,
    TaskSignal,
    text_of,
)
from headrace.model.records import Pause
from headrace.policy.effective import Effective
from headrace.policy.retry import DEADLINE
from headrace.task.codec import scrub
from headrace.task.journal import Suspended, Suspension
from headrace.task.large_results import EncodedResult
from headrace.worker import tracebacks
from headrace.worker.attempt import LOST, RELEASE, STOP, SUSPEND, TIMEOUT, Attempt

log = logging.getLogger("headrace.worker")

MAX_MESSAGE = 2 * 1024
MAX_TRACEBACK = 16 * 1024
_ON_PURPOSE = (TaskSignal, Suspended)
PARKED_FOR = timedelta(minutes=1)
PAUSED_FOR, PAUSED_LONGEST = timedelta(seconds=5), timedelta(minutes=5)


def too_late(attempt: Attempt) -> Outcome | None:
    """Called right before an attempt starts. None: it may start."""
    if attempt.job.options is None and not attempt.known.timed:
        return None
    own = attempt.own
    if not own.timed:
        return None
    state = attempt.held.state
    now = state.watch.now()
    attempt.cap = own.left(attempt.job, now)
    return expired(attempt.job, own, now, state.name)


def expired(job: Claimed, own: Effective, now: float, worker: str) -> Outcome | None:
    """The outcome of a job whose time to start is over at this time of the store's clock; None: it may start."""
    if own.startable(job, now) <= 0:
        return Cancelled(EXPIRED)
    if own.left(job, now) <= 0:
        text = "the job's deadline passed before this attempt could start"
        failure = Failure(job.attempt, DEADLINE, text, "", datetime.now(UTC), worker)
        return Failed(failure, final=True, reason=DEADLINE)
    return None


def of_result(attempt: Attempt, result: Any) -> Outcome:
    """A task that returned."""
    if attempt.reason == TIMEOUT:
        # It took longer than allowed. Its result is dropped, as it would be if the worker had stopped the task in time.
        return timed_out(attempt, "the task went on after its deadline and then returned")
    if attempt.reason == LOST:
        return Released()
    try:
        return Succeeded(encode_result(attempt, result))
    except (SerializationError, ResultTooLarge) as error:
        return Failed(_failure(attempt, error, "bad_result"), final=True, reason="bad_result")
    except Exception as error:  # noqa: BLE001  # a user's type may do anything while it is encoded
        return of_error(attempt, error)


def encode_result(attempt: Attempt, result: Any) -> bytes | None:
    """A task's result as bytes; raises SerializationError or ResultTooLarge."""
    codec = attempt.known.codec
    assert codec is not None  # only tasks that are declared here run
    data = result.data if isinstance(result, EncodedResult) else codec.encode_result(result)
    if data is not None and len(data) > (limit := attempt.held.state.max_result):
        raise ResultTooLarge(len(data), limit)
    return data


def of_error(attempt: Attempt, error: BaseException) -> Outcome:
    """A task that raised."""
    reason = attempt.reason
    if isinstance(error, asyncio.CancelledError) and reason:
        return _interrupted(attempt, reason)
    if reason == TIMEOUT:
        return timed_out(attempt, f"over its time; it ended with {kind_of(error)}")
    if reason in {LOST, RELEASE}:
        return Released()
    if isinstance(error, _ON_PURPOSE) and (outcome := _on_purpose(attempt, error)) is not None:
        return outcome
    final = attempt.own.retry.final(error) or _is_remembered(error)
    return Failed(_failure(attempt, error), final=final, reason=kind_of(error) if final else "")


def _is_remembered(error: BaseException) -> bool:
    """Whether the journal has this answer of a wait, so that each later attempt would get it again."""
    return isinstance(error, WaitTimeout) or (isinstance(error, ResultError) and error.of_child)


def _on_purpose(attempt: Attempt, error: BaseException) -> Outcome | None:
    """What the task asked for; None: the exception does not say."""
    match error:
        case Snooze(due=timedelta() | datetime() as due):
            return Snoozed(due)
        case Suspended(suspension=suspension):
            return suspended(suspension)
        case RetryAfter(delay=delay):
            return Failed(_failure(attempt, error), retry_after=delay)
        case Cancel(reason=why):
            return Cancelled(_clean(attempt, why))
        case Dead(reason=why):
            return Failed(_failure(attempt, error), final=True, reason=_clean(attempt, why) or "final")
        case _:
            return None


def bad_arguments(attempt: Attempt, error: BaseException) -> Outcome:
    """A payload that does not fit the task. Another attempt would fail, too."""
    kind = error.code if isinstance(error, BadArguments) else BadArguments.code
    return Failed(_failure(attempt, error, kind), final=True, reason=kind)


def timed_out(attempt: Attempt, message: str = "") -> Outcome:
    seconds = attempt.timeout
    text = (
        f"longer than {seconds:g} s"
        + (", all that its deadline left" if seconds == attempt.cap else "")
        + (f": {message}" if message else "")
    )
    return Failed(_bare(attempt, TIMEOUT, text))


def rolled_back(attempt: Attempt) -> Outcome:
    return Failed(_bare(attempt, "rolled_back", "the transaction that completed this job was rolled back"))


def unknown_task(name: str) -> Outcome:
    return Snoozed(PARKED_FOR, note=f"{PARKED} {name}")


def paused(pause: Pause, now: float) -> Outcome:
    """Put off until the task's pause ends. The longer the pause lasts, the less often the job is checked."""
    by = f" by {pause.by}" if pause.by else ""
    if pause.until is not None:
        return Snoozed(pause.until, note=f"{PAUSED}{by}")
    lasts = timedelta(seconds=max(now - pause.since.timestamp(), 0.0))
    return Snoozed(min(max(lasts, PAUSED_FOR), PAUSED_LONGEST), note=f"{PAUSED}{by}")


def kind_of(error: BaseException) -> str:
    """The exception's qualified name."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _interrupted(attempt: Attempt, reason: str) -> Outcome:
    if reason == TIMEOUT:
        return timed_out(attempt)
    if reason == STOP:
        return Cancelled()  # The store has the reason.
    if reason == SUSPEND and attempt.journal is not None:
        return suspended(attempt.journal.suspension)
    return Released()


def suspended(suspension: Suspension) -> Outcome:
    """The job waits without a slot."""
    return Snoozed(suspension.until, suspension.note, suspension.gates, suspension.waits)


def _bare(attempt: Attempt, kind: str, message: str) -> Failure:
    return Failure(attempt.job.attempt, kind, message, "", datetime.now(UTC), attempt.held.state.name)


def _failure(attempt: Attempt, error: BaseException, kind: str = "") -> Failure:
    message, trace = describe(error)
    if hidden := attempt.secrets():
        message, trace = scrub(message, hidden), scrub(trace, hidden)
    return Failure(
        attempt=attempt.job.attempt,
        kind=kind or kind_of(error),
        message=bounded(message, MAX_MESSAGE),
        traceback=bounded(trace, MAX_TRACEBACK),
        at=datetime.now(UTC),
        worker=attempt.held.state.name,
    )


def _clean(attempt: Attempt, reason: object) -> str:
    """A task's own reason as a job's note, bounded and without the values of redacted fields."""
    return bounded(scrub(text_of(reason), attempt.secrets()), MAX_MESSAGE)


def describe(error: BaseException) -> tuple[str, str]:
    """Message and traceback, even if the exception's own methods fail."""
    message: str | None
    try:
        message = text = str(error)
    except Exception as broken:  # noqa: BLE001  # a user's exception may do anything while it is shown
        message, text = None, f"<its message cannot be read: {kind_of(broken)}>"
    try:
        trace = tracebacks.text_of(error, message)
    except Exception as broken:  # noqa: BLE001  # a user's exception may do anything while it is shown
        trace = f"<its traceback cannot be read: {kind_of(broken)}>"
    return text, trace


def bounded(text: str, limit: int) -> str:
    """At most that many bytes: the start, and the end, which says the most."""
    if text.isascii() and len(text) <= limit:
        return text
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    head, tail = raw[: limit // 4], raw[-(limit - limit // 4 - 40) :]
    return f"{head.decode(errors='ignore')}\n… {len(raw) - limit:,} bytes left out …\n{tail.decode(errors='ignore')}"
