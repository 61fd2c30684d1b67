"""Runs one claimed attempt to its end, through the fault that happens to it, and records what it did."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.model.job import JobId, JobState
from headrace.model.outcome import Cancelled, Failed, Outcome, Released, Settlement, Snoozed, Succeeded
from headrace.testing import faults
from headrace.testing.execute import RunEnd
from headrace.testing.script import Here, Run, Script, StoreCall
from headrace.testing.stand_in import StandIn
from headrace.worker.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that `drain` ran."""

    id: JobId
    """The job's id."""
    task: str
    """The name of its task."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    kwargs: dict[str, Any]
    """Its arguments by name."""
    attempt: int
    """From 1."""
    outcome: str
    """`succeeded`, `failed`, `snoozed`, `cancelled`, or `lost`: a fault, and nothing of the attempt was stored."""
    state: JobState
    """The job's state after the attempt: `done`, `dead`, or `scheduled` and `ready` for a retry."""
    result: Any = None
    """What the task returned."""
    error: BaseException | None = None
    """What the task raised."""
    fault: str | None = None
    """The fault that happened to it."""


def steps(stand: StandIn, attempt: Attempt, extra: Collection[faults.Fault] = ()) -> Script[list[Ran]]:
    """Run the attempt. The answer has one entry, or two if a fault makes a second worker run the job meanwhile."""
    match faults.active_for(attempt, extra):
        case None:
            return [(yield from _plain(stand, attempt))]
        case faults.LostLease(when="after", label=label):
            ended = yield from _run(stand, attempt)
            return [(yield from _lose(stand, attempt, ended, label))]
        case faults.LostLease(label=label):
            return (yield from _taken_over(stand, attempt, label))
        case faults.Crash(when="before", label=label):
            return [(yield from _lose(stand, attempt, None, label))]
        case faults.Crash(when="after", label=label):
            ended = yield from _run(stand, attempt)
            return [(yield from _lose(stand, attempt, ended, label))]
        case faults.Crash(when=int(line), label=label) as crash:
            ended = yield from _run(stand, attempt, crash_at=line)
            if ended.crashed:
                return [(yield from _lose(stand, attempt, None, label))]
            crash.missed = True
            return [(yield from _settle(stand, attempt, ended))]
        case faults.SlowStore(late=late, label=label):
            ended = yield from _run(stand, attempt)
            stand.clock.advance(late)
            yield StoreCall(stand.catch_up)
            return [(yield from _settle(stand, attempt, ended, label))]
        case other:
            raise TypeError(f"{other!r} is not a fault of headrace.testing.faults")


def _plain(stand: StandIn, attempt: Attempt) -> Script[Ran]:
    ended = yield from _run(stand, attempt)
    return (yield from _settle(stand, attempt, ended))


def _run(stand: StandIn, attempt: Attempt, *, crash_at: int | None = None) -> Script[RunEnd]:
    token = attempt.held.token
    stand.running.add(token)
    try:
        ended: RunEnd = yield Run(attempt, crash_at)
    finally:
        stand.running.discard(token)
    if ended.error is not None and isinstance(ended.outcome, Released) and not attempt.reason:
        # The test itself ends here: by Ctrl-C, by its framework, or because its event loop cancels it.
        yield StoreCall(partial(stand.settle, attempt, ended.outcome))
        raise ended.error
    return ended


def _settle(stand: StandIn, attempt: Attempt, ended: RunEnd, fault: str | None = None) -> Script[Ran]:
    outcome = ended.outcome
    if attempt.completed and isinstance(outcome, Succeeded):
        outcome = Succeeded(stand.completions.results.pop(attempt.job.id, None))
    follows: Settlement | None = yield StoreCall(partial(stand.settle, attempt, outcome))
    hooks = stand.state.failure_hooks
    if follows is not None and hooks is not None and follows.failure is not None:
        yield Here(hooks.hand_over)
    attempt.slots = None
    if follows is None:
        return (yield from _record(stand, attempt, ended, "lost", fault))
    return (yield from _record(stand, attempt, ended, _named(outcome), fault))


def _lose(stand: StandIn, attempt: Attempt, ended: RunEnd | None, label: str) -> Script[Ran]:
    yield StoreCall(partial(stand.lose, attempt, label))
    attempt.slots = None
    return (yield from _record(stand, attempt, ended, "lost", label))


def _taken_over(stand: StandIn, attempt: Attempt, label: str) -> Script[list[Ran]]:
    """A second worker runs and settles the job before the first one, which has lost its lease, runs the task."""
    yield StoreCall(partial(stand.lose, attempt, label))
    ran: list[Ran] = []
    second: Attempt | None = yield StoreCall(partial(stand.claim, (attempt.job.queue,), attempt.job.id))
    if second is not None:
        ran.append((yield from _plain(stand, second)))
    ended = yield from _run(stand, attempt)
    attempt.slots = None
    ran.append((yield from _record(stand, attempt, ended, "lost", label)))
    return ran


def _record(stand: StandIn, attempt: Attempt, ended: RunEnd | None, outcome: str, fault: str | None) -> Script[Ran]:
    job = attempt.job
    [stored] = yield StoreCall(partial(stand.store.get, [job.id]))
    args, kwargs = _arguments(attempt)
    return Ran(
        id=job.id,
        task=job.task,
        args=args,
        kwargs=kwargs,
        attempt=job.attempt,
        outcome=outcome,
        state=stored.state if stored is not None else JobState.CANCELLED,
        result=None if ended is None or outcome == "lost" else ended.value,
        error=None if ended is None else ended.error,
        fault=fault,
    )


def _arguments(attempt: Attempt) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        return attempt.arguments()
    except Exception:  # noqa: BLE001  # the outcome says so
        return (), {}


def _named(outcome: Outcome) -> str:
    match outcome:
        case Succeeded():
            return "succeeded"
        case Failed():
            return "failed"
        case Snoozed():
            return "snoozed"
        case Cancelled():
            return "cancelled"
        case _:
            return "released"


def is_failure(ran: Ran) -> bool:
    """Whether the attempt failed, and not only was put off."""
    return ran.outcome == "failed"
