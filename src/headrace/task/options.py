"""How the jobs of one call are enqueued, and the lane in which they wait."""

from __future__ import annotations

import functools
from datetime import timedelta

import msgspec

from headrace.errors import ConfigError
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


def check_producer(value: object) -> str:
    """A producer's name, or a ConfigError."""
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable():
        raise ConfigError(f"producer = {value!r}: 1 to 100 printable characters, such as billing-api")
    return value
