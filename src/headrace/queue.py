"""Queues as an app declares them: how long one keeps its dead letters, and how many are too many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from headrace import duration
from headrace.errors import ConfigError
from headrace.lane import check_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What one queue does differently from the settings."""

    name: str
    dead_retention: timedelta | None = None
    """How long its dead letters are kept; None: `keep_dead`."""
    dead_alert: int | None = None
    """How many dead letters are too many; None: no number is."""


@dataclass(frozen=True, slots=True)
class DeadAlert:
    """A queue has as many dead letters as its `dead_alert` says, or more."""

    queue: str
    dead: int
    threshold: int


def declare(
    name: str, *, dead_retention: duration.Duration | None = None, dead_alert: int | None = None
) -> QueueOptions:
    """Checked options, or a ConfigError that says what to write."""
    check_queue(name)
    where = f"queue {name!r}: "
    if dead_alert is not None and (isinstance(dead_alert, bool) or not isinstance(dead_alert, int) or dead_alert < 1):
        raise ConfigError(f"{where}dead_alert = {dead_alert!r}: a whole number from 1 on, or None for no alert")
    if dead_retention is not None and not isinstance(dead_retention, str | timedelta):
        raise ConfigError(f'{where}dead_retention = {dead_retention!r} is no duration: write "14d" or a timedelta')
    kept = None if dead_retention is None else duration.parse(dead_retention, name=f"{where}dead_retention")
    return QueueOptions(name=name, dead_retention=kept, dead_alert=dead_alert)


def dead_retentions(queues: Mapping[str, QueueOptions]) -> dict[str, timedelta]:
    """The queues that keep their dead letters for a time of their own."""
    return {name: each.dead_retention for name, each in queues.items() if each.dead_retention is not None}


def dead_alerts(queues: Mapping[str, QueueOptions]) -> dict[str, int]:
    """The queues that watch the number of their dead letters."""
    return {name: each.dead_alert for name, each in queues.items() if each.dead_alert is not None}
