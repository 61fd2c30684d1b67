"""What every store does: about thirty verbs, five of them hot (enqueue, claim, heartbeat, settle, wait).

A store decides nothing. It moves jobs when told, fences every write made under a lease by the lease's
token, and keeps time by its own clock. Every write takes a batch; one is a batch of one. The rules are
the cases of `tests/conformance`, and the store in `memory/` is their executable form. Internal until it is boring:
implement it outside this repository and it may break under you.

Rules worth knowing before reading an implementation:

* enqueue may be repeated: a batch id that is already there changes nothing and answers as before. So may a claim whose
  answer was lost: a token that has a lease gets that lease, whatever else waits; nothing more is taken under it.
* An idempotency key lives out its window whatever becomes of its job. Inside one batch, too, the first job with
  a key makes it and the others meet it.
* An instant belongs to what begins with it: a lease is expired, a job due, a key or a result over from that very
  moment on.
* A lease is good until `reap` takes it over (or it is settled to the end), not until its time is up:
  the token's existence is the fence, clocks only decide when somebody may come and take it.
* A claim counts the attempt before user code runs.
* A suspect is claimed alone: a lease that contains one contains nothing else. A claim that meets a suspect
  first takes just it; one that meets it later stops before it.
* Order inside a lane is the order of enqueue calls, for life: a job that comes back (released, promoted, retried)
  takes its old place. A store may go by its own count of calls or by job ids: within one producer they agree.
* Tenants of one queue and priority take turns, one job each or an equal quantum, times their weight if the Ask gives
  one; a turn that a full batch cuts short goes on with the next claim, so shares hold also when claims take one job
  each. The lanes of a tenant share its turn, in turns; queues of one priority take turns, too. A claim is strict only
  about priority and about the order in a lane. Who has nothing that may run now is passed over and owed nothing.
* A claim with bands is as if each band were a claim of its own, in their order, and the rest of the limit one more.
* A limit key (see `lane.split_limit`) without a rule limits nothing; the rule of a whole key stands before that of its
  name. A claim takes from a lane at most what every one of its keys leaves: `concurrency` minus the units of jobs
  under a lease, reaped ones included, until they are settled; the units in a bucket that starts full with `burst`,
  refills at `rate` and is drawn from at claim; nothing while `closed_until` lies ahead, and when it has passed one job at
  a time, whatever it costs: only while no unit is held. A bucket drawn from more than 10 s after now (somebody has set
  the clock back) is full. At no moment do leases hold
  more than a rule that was there when they were made allows. Lanes that are blocked are passed over and stay as they are.
* A unique lock belongs to the job that took it last; whether it holds is read from that job, never written: its state,
  its age, whether it is there at all. So every way out frees it. Keys are looked at before locks.
* wait: after a claim of the same store object that passed something over for a reason that ends by time (a rate, a
  closed limit, a pause until), wait returns by then; not for what needs more than there can ever be (`Blocked.never`).
* cancel: waiting → cancelled at once; running → `Pulse.stops`, and an `Again` for it becomes cancelled (with what
  it says of failures) under the cancel's reason, which also stands in where a `Finish` as cancelled has no note;
  finished → untouched.
* upkeep: a heartbeat with a group (`Presence.upkeep`) gets one of the group's UPKEEP_PLACES if the worker has one or one
  is free. A place is held for the `ttl` of the heartbeat that got or kept it; `retire` and `abandon` free it at once.
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


class Store(Protocol):
    """Where jobs live. Safe to use from one event loop; make one per loop."""

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        """Connect and check: raises Unavailable, SchemaMismatch or ConfigError with the way out."""
        ...

    async def close(self) -> None:
        """Give everything back. May be called twice."""
        ...

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Bring the schema up to date; safe when two do it at once, and before `open`. Answers the steps taken."""
        ...

    async def check(self) -> list[Finding]:
        """What a careful operator would look at: versions, durability, settings, bloat."""
        ...

    async def now(self) -> datetime:
        """The store's clock."""
        ...

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        """Store a batch durably, all or nothing. Raises IdempotencyConflict."""
        ...

    async def claim(self, ask: Ask) -> Lease | None:
        """Take up to `limit` (never over MAX_LEASE) ready jobs, strictly higher priority first; None: there are none."""
        ...

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        """Renew leases, say who is there, hear who is lost and what to stop."""
        ...

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        """Apply settlements by position, durably; answers the positions refused (the lease is lost).

        A position settled before under the same, still living lease is not refused and not applied again.
        One that the lease never had is refused. The lease ends when every position is settled.
        """
        ...

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        """What running tasks say of their jobs, by position; answers the positions refused: lost, settled, never had.

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
        """Take over expired leases under fresh tokens held by `worker`; the old tokens are void from here on.

        It is no claim: attempts, positions and claim times stay as they are.
        """
        ...

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        """A worker is known to be dead: expire all its leases now. Answers how many."""
        ...

    async def retire(self, worker: WorkerId) -> None:
        """A worker leaves in peace: forget its presence."""
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
        """Every queue in figures.

        A store looks at no more than 1,000 lanes of a queue for its oldest job, and says so (`oldest_at_least`) where the
        queue has more: the cost of a look does not grow with the backlog or with the number of tenants.
        """
        ...

    async def workers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        ...

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        """Finished jobs that are kept, with their end at or after `since`, the earliest end first (then by id).

        One that is committed late may come before others seen already: who follows asks again for the last seconds.
        """
        ...

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        """Lanes of these queues that have ready jobs, at most `limit` of each queue; where there are more, others each time.

        A call sees no more than MAX_LANES of a queue, whatever the limit. As many as that, or as `limit`, may not be all.
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

    async def delete(self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None) -> frozenset[JobId]:
        """Forget jobs that are not running (their totals stay). Answers those deleted.

        `states`: only those that are in one of these at that very moment; whatever else they have become, they stay.
        """
        ...

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        """No claim of this queue, or of this tenant in any queue, begins after this returns.

        Of two pauses the first counts, by whom and since when; the last one says until when. One that is over is none.
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

        Claims that begin after this returns go by it. What runs goes on.
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

        So that a user's transaction which completes the job locks nothing else. The old lease forgets it as
        if it were settled. Works on a lease of one, too.
        """
        ...


@runtime_checkable
class Transactional(Protocol):
    """Stores that can write inside the user's own transaction.

    The sync twins run in the caller's thread on a sync connection; the async ones take both kinds.
    Raise BadTransaction for an object they do not know, an async connection given to a sync call,
    a connection to another database, or one that is in no transaction and would commit at once.

    """

    @property
    def one_writer(self) -> bool:
        """A writer locks out everybody else, so a job is completed in its own lease.

        Detaching it first would wait for the very transaction that completes it.
        """
        ...

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued: ...

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued: ...

    def settle_in(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]: ...

    async def asettle_in(
        self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> frozenset[int]: ...


@runtime_checkable
class Recording(Protocol):
    """Stores behind which a server writes the record of a dead letter that is dropped: no second one is written here."""

    async def drop(self, ids: Sequence[JobId], event: str, reason: str) -> frozenset[JobId]:
        """Delete those that are dead, each after a line in the server's log. Answers those deleted."""
        ...


@runtime_checkable
class Prompt(Protocol):
    """Stores that can claim for a sleeper in the moment in which they wake it: one trip less before the job starts."""

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        """Sleep like `wait`, then claim. A bool is as of `wait`, and the caller claims itself: there may be something.

        Misses nothing that was there before. Called off (cancelled), it gives back whatever it has claimed. When it
        raises, a claim of the same store object with the same token gets what it may have claimed.
        """
        ...
