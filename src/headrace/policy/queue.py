"""Queues as an app declares them: the order of jobs, the largest length, and what happens to dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, get_args

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.lane import check_queue, check_tenant
from headrace.model.lease import MAX_WEIGHT
from headrace.policy.flow import STRICT, Fair, FairBy, Priority, check_policy

MAX_SHARDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The options of one queue that differ from the settings."""

    name: str
    dead_retention: timedelta | None = None
    """How long its dead letters are kept; None: `keep_dead`."""
    dead_arguments: bool = False
    """When retention drops a dead letter, the log line shows its arguments, masked by `redact`."""
    dead_alert: int | None = None
    """The number of dead letters that raises an alert. None: no alert."""
    fair: Fair = "round_robin"
    """How tenants share the queue: in equal turns, in proportion to their waiting jobs, or not at all."""
    fair_by: FairBy = "jobs"
    """What is shared in turns: jobs, or the time they run."""
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    """tenant → jobs in its turn. 1 for other tenants."""
    priority: Priority = STRICT
    max_length: int | None = None
    """Jobs that may wait in it. Beyond it, enqueue raises QueueFull. None: any number."""
    shards: int = 1
    """Shards over which a store spreads it, if the store supports shards."""
    foreign: bool = False
    """Tasks that the app does not know may be enqueued over HTTP, for workers in other languages."""


@dataclass(frozen=True, slots=True)
class DeadAlert:
    """A queue has reached its `dead_alert`."""

    queue: str
    dead: int
    threshold: int


def declare(
    name: str,
    *,
    dead_retention: duration.Duration | None = None,
    dead_arguments: bool = False,
    dead_alert: int | None = None,
    fair: Fair = "round_robin",
    fair_by: FairBy = "jobs",
    weights: Mapping[str, int] | None = None,
    priority: Priority | str = STRICT,
    max_length: int | None = None,
    shards: int = 1,
    foreign: bool = False,
) -> QueueOptions:
    """Checked options, or a ConfigError that says what to write."""
    check_queue(name)
    try:
        return QueueOptions(
            name=name,
            dead_retention=_kept(dead_retention),
            dead_arguments=_flag("dead_arguments", dead_arguments),
            dead_alert=None if dead_alert is None else _count("dead_alert", dead_alert, ", or None for no alert"),
            fair=_choice("fair", fair, get_args(Fair)),
            fair_by=_choice("fair_by", fair_by, get_args(FairBy)),
            weights=_weights(weights, fair, fair_by),
            priority=check_policy(priority),
            max_length=None if max_length is None else _count("max_length", max_length, ", or None for any length"),
            shards=_count("shards", shards, f" to {MAX_SHARDS:,}", most=MAX_SHARDS),
            foreign=_flag("foreign", foreign),
        )
    except ConfigError as error:
        raise ConfigError(f"queue {name!r}: {error}") from None


def _kept(value: duration.Duration | None) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'dead_retention = {value!r} is not a duration: write "14d" or a timedelta')
    return duration.parse(value, name="dead_retention")


def _count(name: str, value: Any, otherwise: str, *, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise ConfigError(f"{name} = {value!r}: a whole number from 1 on{otherwise}")
    return value


def _choice(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ConfigError(f"{name} = {value!r}: one of {', '.join(known)}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: True or False")
    return value


def _weights(given: Mapping[str, int] | None, fair: Fair, fair_by: FairBy) -> dict[str, int]:
    if given is None or given == {}:
        if fair != "round_robin" and fair_by != "jobs":
            raise ConfigError(f'fair_by = {fair_by!r} goes with fair = "round_robin" only: leave one of them out')
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f'weights = {given!r}: a mapping of tenants to jobs in a turn, e.g. {{"acme": 3}}')
    if fair != "round_robin":
        raise ConfigError(f'weights go with fair = "round_robin" only, not with {fair!r}: leave one of them out')
    for tenant, weight in given.items():
        check_tenant(tenant)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
            raise ConfigError(
                f"weights: tenant {tenant!r} has {weight!r}: a whole number from 1 to {MAX_WEIGHT}; to hold a tenant "
                "back, pause it or give it a limit"
            )
    return dict(given)


def dead_retentions(queues: Mapping[str, QueueOptions]) -> dict[str, timedelta]:
    """The queues that keep their dead letters for a time of their own."""
    return {name: each.dead_retention for name, each in queues.items() if each.dead_retention is not None}


def dead_alerts(queues: Mapping[str, QueueOptions]) -> dict[str, int]:
    """The queues that have a `dead_alert`."""
    return {name: each.dead_alert for name, each in queues.items() if each.dead_alert is not None}
