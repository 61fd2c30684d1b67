"""Lanes: the jobs of one queue that share priority, tenant and limit keys; the unit of every flow decision."""

from __future__ import annotations

import re
from datetime import datetime
from uuid import UUID

import msgspec

from headrace.errors import ConfigError

LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_TENANT = re.compile(r"[\x21-\x7e]{0,128}", re.ASCII)
_KEY_LIMIT = 256
_UNITS = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)

MAX_UNITS = 1_000_000
"""The largest concurrency, burst and cost of a limit."""
MAX_LANES = 1000
"""Lanes of a queue that one read returns."""
RESERVED = "headrace."
"""The prefix of headrace's own queues and tasks."""


class Lane(msgspec.Struct, frozen=True, gc=False):
    """Where a job waits. Within a lane jobs leave in the order of their enqueue calls."""

    queue: str = "default"
    priority: int = 0
    """Higher runs first."""
    tenant: str = ""
    """Empty: no tenant."""
    limits: tuple[str, ...] = ()
    """The limit keys that a job of this lane needs, e.g. `stripe`, `shop:acme`, or `api@3` for three units of it."""

    @property
    def id(self) -> int:
        """0 without limit keys, else a hash of them. With queue, priority and tenant it identifies the lane."""
        if not self.limits:
            return 0
        from hashlib import blake2b  # Lanes without limits do without it.

        digest = blake2b("\0".join(self.limits).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True) or 1


def split_limit(key: str) -> tuple[str, str, int]:
    """A limit key of a lane as (the limit's name, the key that has the units, how many units a job needs).

    `stripe` → (stripe, stripe, 1); `shop:acme` → (shop, shop:acme, 1); `shop@3:acme` → (shop, shop:acme, 3).
    Every stored text is valid here, so that a claim never fails: units outside 1 to MAX_UNITS count as 1.
    """
    head, colon, own = key.partition(":")
    name, _, cost = head.partition("@")
    return name, name + colon + own, _units(cost)


def _units(text: str) -> int:
    return units if _UNITS.fullmatch(text) and (units := int(text)) <= MAX_UNITS else 1


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that keeps a lane's next job from being claimed right now."""

    key: str
    """The key that has the units, as `split_limit` returns it."""
    concurrency: int | None = None
    """The number of units that may be held at once, if that is the reason. None: it is not."""
    held: int = 0
    """Units held by running jobs."""
    by: tuple[UUID, ...] = ()
    """Some of the jobs that hold them, at most 5."""
    opens_at: datetime | None = None
    """When the rate has refilled, or the limit opens. None: neither is the reason."""
    never: bool = False
    """A job needs more units than the rule can ever give. It waits until the rule changes."""


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One lane that has ready jobs, as a reader sees it."""

    queue: str
    priority: int
    tenant: str
    id: int
    """As `Lane.id`."""
    jobs: int
    """Ready jobs. The count ends at 10,000."""
    oldest: datetime
    """When its first job was enqueued."""


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Why a waiting job is not claimed, as far as its store can tell."""

    lane: int = 0
    """Ready jobs before it in its lane; 0 for a scheduled one, which has no place yet."""
    higher: int = 0
    """Ready jobs of higher priority in its queue; 0 for a scheduled one. A store that looks into 1,000 lanes counts one job
    for each of the others, so behind more lanes than that there are at least so many."""
    limit: int
    """Both counts end here. A count of this value means at least so many."""
    suspect: bool = False
    """It was running when a worker died: it is claimed alone."""
    paused_by: str | None = None
    """The name of the operator who paused its queue, "" if none was given. None: it is not paused."""
    paused_since: datetime | None = None
    paused_until: datetime | None = None
    """None: until it is resumed."""
    tenant_paused_by: str | None = None
    """The same for its tenant."""
    tenant_paused_since: datetime | None = None
    tenant_paused_until: datetime | None = None
    blocked: tuple[Blocked, ...] = ()
    """The limits that would stop a claim of this lane now. Only for a ready job."""


def check_queue(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r:.80} is not a valid queue name: 1 to 63 of a-z 0-9 _ . - and a letter or digit first"
        )
    return name


def check_task_name(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
        raise ConfigError(f"{name!r:.80} is not a valid task name: 1 to 128 of A-Z a-z 0-9 _ . - and no . or - first")
    return name


def check_event_name(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
        raise ConfigError(f"{name!r:.80} is not a valid event name: 1 to 128 of A-Z a-z 0-9 _ . - and no . or - first")
    return name


def check_tenant(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _TENANT.fullmatch(name):
        raise ConfigError(f"{name!r:.80} is not a valid tenant: up to 128 printable ASCII characters, no spaces")
    return name


def check_priority(value: int) -> int:
    """The priority, or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY:
        raise ConfigError(f"priority = {value!r}: a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}")
    return value


def check_key(key: str) -> str:
    """An idempotency or limit key, or a ConfigError."""
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_LIMIT or not key.isprintable():
        raise ConfigError(f"key = {key!r:.80}: 1 to {_KEY_LIMIT} printable characters")
    return key
