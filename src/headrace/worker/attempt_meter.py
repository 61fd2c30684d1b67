"""Tells the app's meter how attempts ended: successes by the batch that settles them, other ends one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from headrace.model.job import JobState
from headrace.model.outcome import Cancelled, Failed, Finish, Lost, Outcome, Settlement, Snoozed, Succeeded
from headrace.model.rollup import AttemptEnd
from headrace.task.tracing import AttemptMeter, AttemptOutcome
from headrace.worker.tally import Kinds, Measured

if TYPE_CHECKING:
    from headrace.worker.attempt import Attempt
    from headrace.worker.state import HeldLease

_LOST = "worker_lost"


def tell_end(meter: AttemptMeter, attempt: Attempt, outcome: Outcome) -> None:
    """Count one attempt, unless it never started."""
    if attempt.started:
        name, error = _name_of(attempt, outcome)
        meter.ended(attempt.job.queue, attempt.job.task, name, error, 1, (monotonic() - attempt.started,))


def tell_successes(
    meter: AttemptMeter,
    held: HeldLease,
    batch: Sequence[tuple[int, Settlement]],
    measured: Sequence[Measured],
    *,
    plain: bool,
) -> None:
    """Count the successes of a batch, with the durations that history measures. `plain`: all of it are successes."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for attempt, ended, end in measured:
        if end is None or end is AttemptEnd.DONE:
            seconds.setdefault((attempt.job.queue, attempt.job.task), []).append(ended - attempt.started)
    counts: Mapping[tuple[str, str], int]
    if held.kinds is None:
        # All attempts of a small lease are measured.
        counts = {kind: len(durations) for kind, durations in seconds.items()}
    else:
        counts = _counts(held.kinds, batch if plain else _successes(batch))
    for (queue, task), count in counts.items():
        meter.ended(queue, task, "done", "", count, seconds.get((queue, task), ()))


def _successes(batch: Sequence[tuple[int, Settlement]]) -> Sequence[tuple[int, Settlement]]:
    return [entry for entry in batch if isinstance(entry[1], Finish) and entry[1].state is JobState.DONE]


def _counts(kinds: Kinds, batch: Sequence[tuple[int, Settlement]]) -> Mapping[tuple[str, str], int]:
    if isinstance(kinds, tuple):
        return {kinds: len(batch)} if batch else {}
    return Counter([kinds[position] for position, _ in batch])


def _name_of(attempt: Attempt, outcome: Outcome) -> tuple[AttemptOutcome, str]:
    match outcome:
        case Succeeded():
            return "done", ""
        case Failed(failure=failure):
            return "failed", failure.kind
        case Lost():
            return "failed", _LOST
        case Snoozed():
            return "snoozed", ""
        case Cancelled() if not attempt.reason:
            return "cancelled", ""
        case _:
            return "interrupted", ""
