"""What every store does: about forty verbs, five of them hot (enqueue, claim, heartbeat, settle, wait).

A store decides nothing. It moves jobs on request, checks the lease's token at every write under a lease, and uses its
own clock. Every write takes a batch. The rules are the cases of `tests/conformance`, and the store in `memory/` is
their executable form. The contract is internal: it may change in any version and break implementations outside this
repository.

Rules worth knowing before reading an implementation (`store/gates.py` has those about gates):

* enqueue may be repeated: a batch id that exists already changes nothing and returns the same answer, with the later
  holder of a lock if there is one. A claim whose answer was lost may be repeated, too: its token gets the lease that it has.
* An idempotency key is kept for its whole window, whatever happens to its job. Inside one batch, too, the first job
  with a key is made, and the others get that job.
* A time is the first instant of what begins with it: at that instant a lease is expired, a job is due, and a key or a
  result has ended.
* A lease is valid until `reap` takes it over or all its jobs are settled, not until its time is over. The store checks
  that the token exists. The clock only decides when `reap` may take the lease.
* A claim counts the attempt before user code runs.
* A suspect is claimed alone: a lease that contains one contains nothing else. A claim that meets a suspect first takes
  only it; one that meets it later stops before it.
* The order inside a lane is always the order of enqueue calls: a job that comes back (released, promoted, retried)
  takes its old place. A store may use its own count of calls or job ids: within one producer they agree.
* Tenants of one queue and priority take turns, one job each or an equal quantum, times their weight if the Ask gives
  one; a turn that a full batch cuts short goes on with the next claim, so shares hold also when claims take one job
  each. The lanes of a tenant share its turn, in turns; queues of one priority take turns, too. A claim is strict only
  about priority and about the order in a lane. A tenant without a job that may run now is skipped and gets no
  compensation.
* A claim with bands is as if each band were a claim of its own, in their order, and the rest of the limit one more.
* A limit key (see `lane.split_limit`) without a rule limits nothing; the rule of a whole key overrides that of its
  name. A claim takes from a lane at most what every one of its keys leaves: `concurrency` minus the units of jobs under
  a lease, reaped ones included, until they are settled; the units in a bucket that starts full with `burst`, refills at
  `rate` and is drawn from at claim; nothing while `closed_until` lies ahead, and when it has passed one job at a time,
  whatever it costs: only while no unit is held. A bucket that was drawn from more than 10 s after now is full, because
  the clock was set back. Leases never hold more than the rule at the time of their claim allowed. Blocked lanes are
  skipped and keep their place.
* A unique lock belongs to the job that took it last. Whether it still holds is read from that job and never stored: its
  state, its age, its existence. So every end of the job frees it. Keys are checked before locks.
* wait: after a claim of the same store object that passed something over for a reason that ends by time (a rate, a
  closed limit, a pause until), wait returns by then; not for what needs more than there can ever be (`Blocked.never`).
* cancel: waiting → cancelled at once; running → `Pulse.stops`, and an `Again` for it becomes cancelled (with what it
  says of failures) under the cancel's reason, which also stands in where a `Finish` as cancelled has no note; finished
  → untouched.
* upkeep: a heartbeat with a group (`Presence.upkeep`) gets one of the group's UPKEEP_PLACES if the worker has one or
  one is free. A place is held for the `ttl` of the heartbeat that got or kept it; `retire` and `abandon` free it at
  once. The answer may tell such a worker whether its queues have something to claim, so that it need not claim to find
  out.
* orders: a heartbeat with a presence answers the value of the record of the kind ORDERS whose name is the worker's id. So an
  operator reaches a worker without a further call.
* Text (notes, failures, reasons, presences) may hold anything a str can. What a store cannot hold (NUL, lone
  surrogates) it replaces; it never refuses an outcome because of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from headrace.model.job import Batch, Job, JobId, JobState
from headrace.model.lane import Ahead, LaneView
from headrace.model.lease import Ask, Lease, Orphan, Presence, Pulse, Report, Token, WorkerId
from headrace.model.outcome import Settlement
from headrace.model.records import (
    CancelAnswer,
    Ending,
    Enqueued,
    Filter,
    Finding,
    LimitRule,
    Page,
    Pause,
    PauseKind,
    Progress,
    Promoted,
    Pruned,
    Record,
    Retention,
    Stats,
)
from headrace.store.gates import KeepsGates
from headrace.store.history import KeepsHistory
from headrace.store.journal import KeepsSteps


class Blocking(Protocol):
    """The enqueue of an open store for sync code: the calling thread writes by itself, without an event loop.

    It belongs to the store object that made it, and is used by one thread at a time. It may refuse any call with
    Unavailable. The caller then gives the same batch to `Store.enqueue`, which also tells what is wrong.
    """

    @property
    def waits_for_keys(self) -> bool:
        """Whether a job with a key or a unique lock may have to wait for a transaction of another program."""
        ...

    def enqueue(self, batch: Batch) -> Enqueued:
        """As `Store.enqueue`. After OutcomeUnknown, too, the caller gives the same batch to `Store.enqueue`."""
        ...

    def close(self) -> None:
        """Give the connection back. May be called twice. A call after it is refused."""
        ...


class Store(KeepsHistory, KeepsSteps, KeepsGates, Protocol):
    """A store of jobs. Use it from one event loop; make one object per loop."""

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        """Connect and check. Raises Unavailable, SchemaMismatch or ConfigError with the remedy."""
        ...

    async def close(self) -> None:
        """Close all connections. May be called twice."""
        ...

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Update the schema. Two callers may do it at once, and before `open`. Returns the steps."""
        ...

    async def check(self) -> list[Finding]:
        """Findings for an operator: versions, durability, settings, bloat."""
        ...

    async def now(self) -> datetime:
        """The store's clock."""
        ...

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        """Store a batch durably, all or nothing. Raises IdempotencyConflict and GroupOver."""
        ...

    def blocking(self) -> Blocking | None:
        """A way for sync code to enqueue without this store's event loop; None: this store has none."""
        ...

    async def claim(self, ask: Ask) -> Lease | None:
        """Take up to `limit` (never over MAX_LEASE) ready jobs, strictly higher priority first; None: there are none.

        Jobs with large payloads are fewer: a claim takes no further ones when it has LEASE_BYTES.
        """
        ...

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        """Renew leases and the worker's presence. Returns lost leases and jobs to stop."""
        ...

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        """Apply settlements by position, durably. Returns the refused positions (the lease is lost).

        A position that was settled before under the same valid lease is not refused and not applied again. One that the
        lease never had is refused. The lease ends when every position is settled.
        """
        ...

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        """Write the reports of running tasks by position. Returns the refused positions: lost, settled, or never held.

        Need not survive a crash of the store. A job's reports are kept as long as the job.
        """
        ...

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Sleep until there may be something to claim, at most `timeout` real seconds. True: woken. Only a hint."""
        ...

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        """Move what is due from scheduled to ready, the earliest first."""
        ...

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        """Take over expired leases under fresh tokens for `worker`. The old tokens are invalid from then on.

        This is not a claim: attempts, positions and claim times stay unchanged.
        """
        ...

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        """Expire all leases of a dead worker now. Returns how many."""
        ...

    async def retire(self, worker: WorkerId) -> None:
        """Forget the presence of a worker that has stopped."""
        ...

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        """Drop done and cancelled jobs past retention, a bounded amount of work per call.

        Never earlier; a store that drops whole days at once may keep them up to two days longer. Dead letters stay
        until `delete`, so that their caller can write a record first: see `expired_dead`. The bytes of a result whose
        time to live is over go with the next call, a bounded number of them.
        """
        ...

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        """Dead letters past retention, at most `limit`: to be recorded, then deleted."""
        ...

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Jobs by id, in the order asked, None where there is none; with every failure."""
        ...

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        """Jobs by filter, newest id first, in keyset pages.

        A store may look at a bounded number of jobs per call. The page may then hold fewer than `limit` jobs, or none,
        with `next` set: only a `next` of None is the end. `next` is an id below `before` and not above the page's last
        job; it need not be a job's. All that fits between `before` and `next` is on the page, so a caller that follows
        `next` gets every job once.
        """
        ...

    async def stats(self) -> Stats:
        """The figures of every queue.

        A store reads at most 1,000 lanes of a queue for its oldest job, and sets `oldest_at_least` if the queue has
        more. So the cost does not grow with the backlog or the number of tenants.
        """
        ...

    async def workers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        ...

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        """Finished jobs that are kept, with their end at or after `since`, the earliest end first (then by id).

        An end that is committed late may come before others that were read, so a follower reads the last seconds again.
        """
        ...

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        """Lanes of these queues with ready jobs, at most `limit` of each. If there are more, each call returns others.

        A call reads at most MAX_LANES of a queue. An answer of that size, or of `limit`, may be incomplete.
        """
        ...

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        """What a waiting job waits behind; None: there is no such job, or it does not wait.

        Each count ends at `limit`, so the cost is bounded whatever the backlog.
        """
        ...

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """See the module's rules."""
        ...

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now: failures and crashes from 0, attempts go on counting.

        Note, result and suspicion are forgotten, the history of failures stays. Answers those moved; running,
        ready and unknown ones are left alone. Not `afresh`: scheduled ones only, as if they were due.
        """
        ...

    async def delete(
        self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None, ended_by: datetime | None = None
    ) -> frozenset[JobId]:
        """Forget jobs that are not running (their totals stay): of them those in one of `states` at that moment, and those
        that ended at `ended_by` or before, so that a job that has ended once more stays. Answers those deleted.
        """
        ...

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        """No claim of this queue, or of this tenant in any queue, begins after this returns.

        Of two pauses, the first gives the author and the start, the last gives the end. Pauses that are over do not count.
        """
        ...

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None: ...

    async def pauses(self) -> list[Pause]:
        """Everything that is paused now, by kind and name."""
        ...

    # ── limits ──────────────────────────────────────────────────────────────
    async def limits(self) -> dict[str, LimitRule]:
        """Every rule, by the limit's name or the whole key that it is for."""
        ...

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        """Write a rule as `record` does: if its version is the expected one; rule None deletes. Answers as `record` does.

        Claims that begin after this returns obey it. Running jobs go on.
        """
        ...

    # ── records ─────────────────────────────────────────────────────────────
    async def records(self, kind: str) -> dict[str, Record]:
        """Every record of one kind, by name."""
        ...

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        """Write a record, durably, if its version is still the expected one (None: if there is none); value None deletes.

        Answers the new version, 0 for a deleted one; None: it has another version, and nothing was written.
        """
        ...

    # ── leases, the rare verb ───────────────────────────────────────────────
    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        """Move one unsettled job of a lease into a lease of its own, as its position 0, else like the old one.

        False: the lease is lost, or the position is settled already.

        A user's transaction that completes the job then locks nothing else. The old lease treats the job as settled.
        This works for a lease of one job, too.
        """
        ...


@runtime_checkable
class Recording(Protocol):
    """Stores whose server writes the record of a dropped dead letter, so that the client writes none."""

    async def drop(self, ids: Sequence[JobId], event: str, reason: str, ended_by: datetime | None) -> frozenset[JobId]:
        """Delete those that are dead, each after a line in the server's log. Answers those deleted."""
        ...


@runtime_checkable
class Remarking(Protocol):
    """Stores whose `open` learns something about the server that an operator should change."""

    @property
    def remarks(self) -> Sequence[Finding]:
        """The warnings that `open` met. A worker logs them and `check` lists them; a producer does not repeat them."""
        ...


@runtime_checkable
class Prompt(Protocol):
    """Stores that can claim for a waiting worker when they wake it. This saves one round trip before the job starts."""

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        """Sleep like `wait`, then claim. True: the caller claims itself. False: the time is up, and the claim found nothing.

        It finds jobs that were there before the call. When it is cancelled, it hands back what it has claimed. When it
        raises, a claim of the same store object with the same token gets what it may have claimed.
        """
        ...


@runtime_checkable
class Hinting(Protocol):
    """Stores that wake the workers of all processes, so that workers need to ask only now and then."""

    @property
    def hears(self) -> bool:
        """Whether hints of other processes reach this store object now: those of `wait`, and those of `wait_due`."""
        ...

    async def wait_due(self, timeout: float) -> timedelta | None:
        """Sleep until something may be due earlier than the last `promote` of this object said, at most `timeout` seconds.

        Answers after which time `promote` should be called. None: there was no hint. It wakes for a delayed job that is
        due within a minute, and for leases that `abandon` has expired. One of several sleepers may be enough. Only a
        hint.
        """
        ...
