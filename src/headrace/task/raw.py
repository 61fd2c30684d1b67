"""Jobs of tasks that the app at hand does not declare: their arguments are stored as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from headrace.model.job import Key, NewJob
from headrace.model.lane import Lane
from headrace.task.codec import encode_options
from headrace.task.job_options import due_of, stored


def raw_job(
    task: str, payload: bytes, given: Mapping[str, Any], *, queue: str, key_ttl: timedelta, fair: bool = True
) -> NewJob:
    """A job by checked options. `fair`: tenants take turns in its queue, so that the tenant is a part of the lane."""
    name, tenant = given.get("key"), given.get("tenant", "")
    own = stored(given, key=name, tenant=None if fair else tenant or None)
    key = None
    if name is not None:
        key = Key(name, given.get("key_ttl") or key_ttl, hashlib.blake2b(payload, digest_size=16).digest())
    lane = Lane(queue, given.get("priority", 0), tenant if fair else "")
    return NewJob(task, payload, lane, due_of(given), key, encode_options(own))
