"""One job's own options, as `task.using(…)` takes them: when it is due, until when it may start, in which lane."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import Due
from headrace.model.lane import Lane


class EnqueueOptions(msgspec.Struct, frozen=True):
    """How the jobs of a task, or of one `using(…)` of it, are enqueued."""

    queue: str
    priority: int
    tenant: str | None
    """None: it depends on the arguments."""
    lane: Lane | None
    """None: it depends on the arguments."""
    due: Due = None
    key: str | None = None
    key_ttl: timedelta = timedelta(days=1)
    options: bytes | None = None
    tx: object | None = None


@functools.lru_cache(maxsize=4096)
def lane_of(queue: str, priority: int, tenant: str, limits: tuple[str, ...]) -> Lane:
    """The lane of that name. All callers share one object, because stores find runs of a batch by identity."""
    return Lane(queue, priority, tenant, limits)


def due_of(delay: duration.Duration | None, run_at: datetime | None) -> Due:
    """When a job is due, by the user's arguments. Raises ConfigError."""
    if delay is not None and run_at is not None:
        raise ConfigError("delay and run_at exclude each other: give one")
    if delay is not None:
        return duration.given(delay, name="delay") or None
    if run_at is None:
        return None
    _check_time(run_at, "run_at")
    return duration.check_near(run_at, name="run_at")


def _check_time(value: datetime, name: str) -> None:
    if not isinstance(value, datetime):
        raise ConfigError(f"{name} = {value!r}: an aware datetime, e.g. datetime(2030, 1, 1, tzinfo=UTC)")
    duration.check_aware(value, name=name)


def moment(
    value: duration.Duration | datetime | None, name: str, usual: timedelta | None, due: Due
) -> float | datetime | None:
    """A time limit as a job stores it: seconds after the enqueue by the store's clock, or a time."""
    if isinstance(value, datetime):
        _check_time(value, name)
        if isinstance(due, datetime) and due >= value:
            raise ConfigError(f"the job is due at {due} and {name} = {value}: it could never start")
        return value
    own = positive(value, name)
    limit = usual if own is None else own
    if limit is not None and isinstance(due, timedelta) and due >= limit:
        raise ConfigError(
            f"the job is due after {duration.show(due)} and {name} = {duration.show(limit)}: it could never start"
        )
    return in_seconds(own)


def positive(value: duration.Duration | None, name: str) -> timedelta | None:
    """A duration above zero. None: it was left out."""
    if value is None:
        return None
    if not (found := duration.given(value, name=name)):
        raise ConfigError(f"{name} = {value!r}: must be more than 0; leave it out for none")
    return found


def check_producer(value: object) -> str:
    """A producer's name, or a ConfigError."""
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable():
        raise ConfigError(f"producer = {value!r}: 1 to 100 printable characters, such as billing-api")
    return value


def result_life(value: duration.Duration | None) -> timedelta | None:
    """A `result_ttl`: zero keeps no result; None: it was left out."""
    return None if value is None else duration.given(value, name="result_ttl")


def in_seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
