"""Lanes: the jobs of one queue that share priority, tenant and limit keys; the unit of every flow decision."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime

import msgspec

from headrace.errors import ConfigError

LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)
_TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_TENANT = re.compile(r"[\x21-\x7e]{0,128}", re.ASCII)
_KEY_LIMIT = 256


class Lane(msgspec.Struct, frozen=True, gc=False):
    """Where a job waits. Within a lane jobs leave in the order of their enqueue calls."""

    queue: str = "default"
    priority: int = 0
    """Higher runs first."""
    tenant: str = ""
    """Empty: nobody in particular."""
    limits: tuple[str, ...] = ()
    """The limit keys that a job of this lane needs, e.g. `shop:acme`."""

    @property
    def id(self) -> int:
        """0 without limit keys, else a hash of them: with queue, priority and tenant it names the lane."""
        if not self.limits:
            return 0
        digest = hashlib.blake2b("\0".join(self.limits).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True) or 1


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """What stands between a waiting job and a claim, as far as its store knows."""

    lane: int = 0
    """Ready jobs before it in its lane; 0 for a scheduled one, which has no place yet."""
    higher: int = 0
    """Ready jobs of higher priority in its queue; 0 for a scheduled one."""
    limit: int
    """Both counts end here: one that is as high means at least so many."""
    suspect: bool = False
    """It was running when a worker died: it is claimed alone."""
    paused_by: str | None = None
    """Who paused its queue, "" if nobody said; None: it is not paused."""
    paused_since: datetime | None = None


def check_queue(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no queue name: 1 to 63 of a-z 0-9 _ . - and a letter or digit first")
    return name


def check_task_name(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no task name: 1 to 128 of A-Z a-z 0-9 _ . - and no . or - first")
    return name


def check_tenant(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _TENANT.fullmatch(name):
        raise ConfigError(f"{name!r} is no tenant: up to 128 printable ASCII characters, no spaces")
    return name


def check_priority(value: int) -> int:
    """The priority, or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY:
        raise ConfigError(f"priority = {value!r}: a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}")
    return value


def check_key(key: str) -> str:
    """An idempotency or limit key, or a ConfigError."""
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_LIMIT or not key.isprintable():
        raise ConfigError(f"key = {key!r}: 1 to {_KEY_LIMIT} printable characters")
    return key
