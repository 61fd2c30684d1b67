"""Leases: the time-limited right to a batch of attempts. Its token protects every write."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal, NewType
from uuid import UUID, uuid4

import msgspec

from headrace.model.job import Claimed, LogLine

Token = NewType("Token", UUID)
WorkerId = NewType("WorkerId", UUID)

MAX_LEASE = 1000
"""Jobs in one lease."""

CLOSED = "closed "
"""What a worker reports before the name of a queue that is outside its open hours."""

LEASE_BYTES = 4_000_000
"""Bytes of payload in one lease, about. Only the job that is the first or the last one may exceed them."""

MAX_WEIGHT = 100
"""The largest weight: jobs in one turn of a tenant, where a tenant without a weight has one."""


def new_token() -> Token:
    """Random, never reused: a counter could go back when a crash loses an asynchronous claim."""
    return Token(uuid4())


def new_worker_id() -> WorkerId:
    """Random for each process start, never the host's name, because a restarted worker is another worker."""
    return WorkerId(uuid4())


class Band(msgspec.Struct, frozen=True):
    """A range of priorities from which a claim takes jobs before the rest."""

    lowest: int
    highest: int
    share: int
    """At most so many jobs of the claim come from here. Unused places go to the bands that follow."""
    queues: tuple[str, ...] = ()
    """Only from these queues. Empty: from all queues of the claim."""


class Ask(msgspec.Struct, frozen=True):
    """The arguments of `claim`. `policy/flow.py` turns policies into these figures, so that stores need no policy."""

    worker: WorkerId
    queues: tuple[str, ...]
    limit: int
    """At most so many jobs, up to MAX_LEASE."""
    ttl: timedelta
    token: Token
    """Made by the caller. The lease gets it."""
    bands: tuple[Band, ...] = ()
    """The claim takes from these in order, each like a claim of its own, then the rest of the limit from all queues."""
    only_bands: bool = False
    """Take jobs from the bands only."""
    weights: Mapping[str, Mapping[str, int]] = {}
    """queue → tenant → jobs in a turn, for tenants with more than one; at most MAX_WEIGHT."""
    tenant: str | None = None
    """This tenant's jobs only."""


class Lease(msgspec.Struct, frozen=True):
    """A claimed batch. A job is named by its position in `jobs`, which never changes while the lease lives."""

    token: Token
    jobs: list[Claimed]
    suspect: bool = False
    """The only job of this lease was running when a worker died: run it beside as few other jobs as possible."""
    cut: bool = False
    """The claim ended because its jobs are large, so more of them may wait."""


class Orphan(msgspec.Struct, frozen=True):
    """An expired lease that `reap` took over under a fresh token, with its unsettled jobs."""

    token: Token
    jobs: list[tuple[int, Claimed]]
    """(position, job)"""
    suspect: bool
    """As in Lease: the one job ran alone, so the crash counts against it."""
    worker: WorkerId
    """The last holder: the worker that claimed it, or one that reaped it before and did not settle it."""
    cause: str
    """`lease expired`, or what `abandon` said, e.g. `killed by SIGSEGV`."""


class Stop(msgspec.Struct, frozen=True):
    """A running job was cancelled."""

    token: Token
    position: int


class Pulse(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    lost: frozenset[Token]
    """Leases that other workers hold now. Drop their jobs, because the store will refuse their writes."""
    stops: tuple[Stop, ...]
    upkeep: bool = False
    """This worker is one of the few of its group that do the upkeep now."""
    now: datetime | None = None
    """The store's clock while it answered. None: the answer does not tell."""
    order: bytes = b""
    """The value of the worker's record of the kind ORDERS, which is a WorkerOrder. Empty: there is none."""
    ready: bool | None = None
    """For a worker that does upkeep: whether its queues have something to claim. True may be wrong, because not every store
    looks at limits. None: the store does not tell, so the worker has to claim to find out."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a running task reports about its job, under its lease."""

    progress: float | None = None
    """From 0 to 1; None: as before."""
    note: str | None = None
    """What it is doing; None: as before."""
    lines: tuple[LogLine, ...] = ()
    """Added to the job's log, of which the last MAX_LOG lines are kept."""


ORDERS = "orders"
"""The kind of records that say what workers should do. Their names are the ids of workers."""


class WorkerOrder(msgspec.Struct, frozen=True):
    """What an operator wants of one worker."""

    kind: Literal["quiet", "drain"]
    """`quiet`: claim nothing, finish what runs, and stay. `drain`: finish what runs, and end."""
    by: str
    """The operator that gave the order."""
    at: datetime
    """When it was given, by the store's clock."""


MAX_LOG = 100
UPKEEP_PLACES = 3
"""Workers of a group that do the upkeep at one time: more than one, so that the loss of a worker delays nothing."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports about itself with every heartbeat, and what `workers` lists."""

    id: WorkerId
    """The id of the worker."""
    name: str
    """host:pid, for display."""
    queues: tuple[str, ...]
    """The queues that it serves."""
    slots: int
    """The number of jobs that it can run at the same time."""
    running: int
    """The number of jobs that it runs now."""
    version: str
    """The version of headrace that it runs."""
    started_at: datetime
    """When it started."""
    tasks: tuple[str, ...] = ()
    """The names of the tasks that it knows."""
    hindered: tuple[str, ...] = ()
    """Why it starts no other job now, or fewer: `quiet`, `settling`, `quarantine`, `reserved`, `stuck`, `threads`,
    `processes`, and `closed NAME` for each queue that is outside its open hours. Empty: nothing."""
    memory: int | None = None
    """The bytes of memory that it and its child processes occupy; None: the system does not tell."""
    upkeep: str | None = None
    """The group of workers that share their upkeep; None: this worker does none. `workers` does not list it."""
    seen_at: datetime | None = None
    """By the store's clock; filled by `workers`."""
