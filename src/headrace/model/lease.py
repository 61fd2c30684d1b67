"""Leases: the time-limited right to a batch of attempts; the token is the fence on every write."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NewType
from uuid import UUID, uuid4

import msgspec

from headrace.model.job import Claimed, LogLine

Token = NewType("Token", UUID)
WorkerId = NewType("WorkerId", UUID)

MAX_LEASE = 1000
"""Jobs in one lease."""

MAX_WEIGHT = 100
"""Jobs in one turn of a tenant, as compared with one of a tenant without a weight."""


def new_token() -> Token:
    """Random, never reused: a counter could go back when a crash loses an asynchronous claim."""
    return Token(uuid4())


def new_worker_id() -> WorkerId:
    """Random per process start, never the host's name: a reborn worker is another worker."""
    return WorkerId(uuid4())


class Band(msgspec.Struct, frozen=True):
    """A part of what waits, by priority, that a claim looks at before the rest."""

    lowest: int
    highest: int
    share: int
    """At most so many jobs of the claim come from here; what is not found leaves more for those that follow."""
    queues: tuple[str, ...] = ()
    """Of these only; empty: of all queues asked for."""


class Ask(msgspec.Struct, frozen=True):
    """What a worker asks of `claim`. Policies are not a store's business: `policy/flow.py` turns them into these figures."""

    worker: WorkerId
    queues: tuple[str, ...]
    limit: int
    """At most so many jobs, up to MAX_LEASE."""
    ttl: timedelta
    token: Token
    """Made by the caller; the lease gets it."""
    bands: tuple[Band, ...] = ()
    """Taken from in this order, each like a claim of its own; then the rest of the limit from everything asked for."""
    only_bands: bool = False
    """Nothing but what the bands give."""
    weights: Mapping[str, Mapping[str, int]] = {}
    """queue → tenant → jobs in a turn, for tenants with more than one; at most MAX_WEIGHT."""
    tenant: str | None = None
    """This tenant's jobs only."""


class Lease(msgspec.Struct, frozen=True):
    """A claimed batch. A job is named by its position in `jobs`, which never changes while the lease lives."""

    token: Token
    jobs: list[Claimed]
    suspect: bool = False
    """The only job of this lease was running when a worker died: run it with as little company as possible."""


class Orphan(msgspec.Struct, frozen=True):
    """An expired lease taken over by `reap` under a fresh token, with the jobs nobody settled."""

    token: Token
    jobs: list[tuple[int, Claimed]]
    """(position, job)"""
    suspect: bool
    """As in Lease: these jobs (this job) ran alone, so the crash is their own."""
    worker: WorkerId
    """Who held it last: the worker that claimed it, or one that reaped it before and did not settle it either."""
    cause: str
    """`lease expired`, or what `abandon` said, e.g. `killed by SIGSEGV`."""


class Stop(msgspec.Struct, frozen=True):
    """Somebody cancelled a running job."""

    token: Token
    position: int


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    lost: frozenset[Token]
    """Leases that are somebody else's by now: drop their jobs, their writes will be refused."""
    stops: tuple[Stop, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a running task says of its job, under its lease."""

    progress: float | None = None
    """From 0 to 1; None: as before."""
    note: str | None = None
    """What it is doing; None: as before."""
    lines: tuple[LogLine, ...] = ()
    """To be added to the job's log, of which the last MAX_LOG lines are kept."""


MAX_LOG = 100


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself with every heartbeat, and what `workers` lists."""

    id: WorkerId
    name: str
    """host:pid, for people."""
    queues: tuple[str, ...]
    slots: int
    running: int
    version: str
    started_at: datetime
    tasks: tuple[str, ...] = ()
    hindered: tuple[str, ...] = ()
    """Why it starts no other job now, or fewer: `quiet`, `settling`, `quarantine`, `reserved`, `stuck`. Empty: nothing."""
    seen_at: datetime | None = None
    """By the store's clock; filled by `workers`."""
