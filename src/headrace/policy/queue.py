"""Queues as an app declares them: the order of jobs, the largest length, and what happens to dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, TypedDict, Unpack, cast, get_args

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.duration import Duration
from headrace.model.lane import check_queue, check_tenant
from headrace.model.lease import MAX_WEIGHT
from headrace.policy import open_hours
from headrace.policy.flow import STRICT, Fair, FairBy, Priority, check_policy
from headrace.policy.open_hours import OpenHours
from headrace.task.option import Option, OptionKind, Options, Parser, at_least_one, check_flag, checked, named, one_of

MAX_SHARDS = 1024


def _kept(value: Any, name: str) -> timedelta:
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'{name} = {value!r} is not a duration: write "14d" or a timedelta')
    return duration.parse(value, name=name)


def _shares(given: Any, name: str) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise ConfigError(f'{name} = {given!r}: a mapping of tenants to jobs in a turn, e.g. {{"acme": 3}}')
    shares = cast("Mapping[str, int]", given)
    for tenant, weight in shares.items():
        check_tenant(tenant)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
            raise ConfigError(
                f"{name}: tenant {tenant!r} has {weight!r}: a whole number from 1 to {MAX_WEIGHT}; to hold a tenant "
                "back, pause it or give it a limit"
            )
    return dict(shares)


def _code(check: Parser) -> OptionKind:
    return OptionKind(check=check)


class QueueKeywords(TypedDict, total=False):
    """The keyword arguments of `app.queue(…)`. None is the same as leaving an option out."""

    fair: Annotated[
        Fair | None,
        Option(
            doc="How tenants share the queue: `round_robin`, `proportional` to the jobs that each has waiting, or `off`.",
            kind=_code(one_of(*get_args(Fair))),
            default="round_robin",
            code_only=True,
        ),
    ]
    fair_by: Annotated[
        FairBy | None,
        Option(
            doc="What tenants share in turns: `jobs`, or the `time` that they run.",
            kind=_code(one_of(*get_args(FairBy))),
            default="jobs",
            code_only=True,
        ),
    ]
    weights: Annotated[
        Mapping[str, int] | None,
        Option(
            doc="The jobs in the turn of a tenant, by tenant. A tenant that is not named has 1.",
            kind=_code(_shares),
            code_only=True,
        ),
    ]
    priority: Annotated[
        Priority | str | None,
        Option(
            doc='What a priority means: `"strict"`, `ageing("1m")`, or `weighted({"high": 80, "low": 20})`.',
            kind=_code(named(check_policy)),
            default="strict",
            code_only=True,
        ),
    ]
    dead_retention: Annotated[
        Duration | None,
        Option(
            doc="How long dead letters are kept.",
            kind=_code(_kept),
            default="the setting `keep_dead`",
            code_only=True,
        ),
    ]
    dead_arguments: Annotated[
        bool | None,
        Option(
            doc="Whether the log line about a dead letter that retention drops has its arguments, masked by `redact`.",
            kind=_code(check_flag),
            default="False",
            code_only=True,
        ),
    ]
    dead_alert: Annotated[
        int | None,
        Option(
            doc="The number of dead letters that raises an alert.",
            kind=_code(at_least_one(", or None for no alert")),
            code_only=True,
        ),
    ]
    max_length: Annotated[
        int | None,
        Option(
            doc="The number of waiting jobs from which on producers get `QueueFull`.",
            kind=_code(at_least_one(", or None for any length")),
            code_only=True,
        ),
    ]
    open: Annotated[
        str | None,
        Option(
            doc="The hours in which jobs of the queue may start: `22:00-06:00 Europe/Rome`, "
            "`mon-fri 20:00-06:00, sat-sun 00:00-24:00 Europe/Rome`. Jobs that run when it closes go on.",
            kind=_code(open_hours.parse),
            default="always",
            code_only=True,
        ),
    ]
    shards: Annotated[
        int | None,
        Option(
            doc="The number of shards over which a Redis or Valkey cluster spreads the queue.",
            kind=_code(at_least_one(f" to {MAX_SHARDS:,}", most=MAX_SHARDS)),
            default="1",
            code_only=True,
        ),
    ]
    foreign: Annotated[
        bool | None,
        Option(
            doc="Whether tasks that the app does not know may be enqueued over HTTP, for workers in other languages.",
            kind=_code(check_flag),
            default="False",
            code_only=True,
        ),
    ]


OPTIONS = Options(QueueKeywords)


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one queue, as `app.queue` returns them. `QueueKeywords` says what each option means."""

    name: str
    dead_retention: timedelta | None = None
    dead_arguments: bool = False
    dead_alert: int | None = None
    fair: Fair = "round_robin"
    fair_by: FairBy = "jobs"
    weights: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    priority: Priority = STRICT
    max_length: int | None = None
    open: OpenHours | None = None
    shards: int = 1
    foreign: bool = False


class DeadAlert(msgspec.Struct, frozen=True):
    """A queue has reached its `dead_alert`."""

    queue: str
    """The name of the queue."""
    dead: int
    """The number of dead letters in the queue."""
    threshold: int
    """The `dead_alert` of the queue."""


def declare(name: str, **options: Unpack[QueueKeywords]) -> QueueOptions:
    """Checked options, or a ConfigError that says what to write."""
    check_queue(name)
    try:
        queue = QueueOptions(name=name, **checked(OPTIONS, options, "queue"))
        if queue.fair != "round_robin":
            if queue.weights:
                raise ConfigError(
                    f'weights go with fair = "round_robin" only, not with {queue.fair!r}: leave one of them out'
                )
            if queue.fair_by != "jobs":
                raise ConfigError(
                    f'fair_by = {queue.fair_by!r} goes with fair = "round_robin" only: leave one of them out'
                )
    except ConfigError as error:
        raise ConfigError(f"queue {name!r}: {error}") from None
    return queue


def dead_retentions(queues: Mapping[str, QueueOptions]) -> dict[str, timedelta]:
    """The queues that keep their dead letters for a time of their own."""
    return {name: queue.dead_retention for name, queue in queues.items() if queue.dead_retention is not None}


def dead_alerts(queues: Mapping[str, QueueOptions]) -> dict[str, int]:
    """The queues that have a `dead_alert`."""
    return {name: queue.dead_alert for name, queue in queues.items() if queue.dead_alert is not None}
