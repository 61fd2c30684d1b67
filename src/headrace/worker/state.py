"""What a worker holds: leases, their attempts, and counters. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from threading import Lock
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from headrace.errors import StoreDamaged
from headrace.model.job import Claimed, JobId, JobState, NewJob
from headrace.model.lease import MAX_LEASE, Lease, Orphan, Token, WorkerId
from headrace.model.outcome import DONE, Outcome, Settlement
from headrace.model.records import Pause
from headrace.model.step import UNDO
from headrace.runtime.logs import own_name
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.task.hooks import Hooks, Listener, WorkerInfo
from headrace.task.limit import Limit
from headrace.task.undo import start_task
from headrace.webhooks.deliver import DeliveryMaker
from headrace.worker.attempt import Attempt, ObservedAttempt, ResolvedTask
from headrace.worker.failure_hooks import FailureHooks
from headrace.worker.failure_log import FailureLog
from headrace.worker.job_log import JobLog
from headrace.worker.open_queues import OpenNow
from headrace.worker.shared_page import PageEntry, SharedPage
from headrace.worker.store_calls import StoreCalls
from headrace.worker.tally import EACH, Kinds, Measured, Tally

if TYPE_CHECKING:
    from headrace.task.task import Task
    from headrace.worker.step_writer import StepWriter

log = logging.getLogger("headrace.worker")

NEVER: Final = 1 << 30
MARKS: Final = 32
"""Starts of one lease that are written to the shared page, at most. In a large lease one mark covers several jobs."""
DONE_AT: Final = tuple((position, DONE) for position in range(MAX_LEASE))
"""The settlement of a job that ended well, by position: shared, so that the common job costs no object."""


class Governing(Protocol):
    """Receives the outcomes of jobs that have limits."""

    def saw(self, attempt: ObservedAttempt, outcome: Outcome) -> None: ...

    def trip(self, attempt: ObservedAttempt, limit: Limit, until: timedelta | datetime) -> None: ...


class Completing(Protocol):
    """Completes a job inside the user's transaction."""

    async def complete(self, attempt: Attempt, result: Any, tx: object) -> None: ...

    def complete_sync(self, attempt: Attempt, result: Any, tx: object) -> None: ...

    async def detach(self, attempt: Attempt) -> None: ...


class Reporting(Protocol):
    """Writes the reports of running tasks."""

    def take(
        self, attempt: Attempt, *, progress: float | None = None, note: str | None = None, line: str | None = None
    ) -> None: ...

    async def flush(self, held: HeldLease) -> None:
        """Write the reports of this lease now."""
        ...


class HeldLease(msgspec.Struct, eq=False):
    """A lease that this worker holds. A struct, because a worker that gets jobs one by one makes one for each of them."""

    state: WorkerState
    token: Token
    suspect: bool
    claimed_at: float = msgspec.field(default_factory=monotonic)
    attempts: list[Attempt | None] = []
    """Attempts by position. None: it has ended."""
    jobs: list[tuple[UUID, int, int]] = []
    """Batch, ord and attempt number by position. They stay when an attempt has ended."""
    mark: int = NEVER
    """Attempts from this position on write their start to the shared page."""
    place: int = 0
    """Its place on the shared page. 0: none."""
    open: int = 0
    """Attempts without an outcome."""
    ended: list[tuple[int, Settlement]] = []
    """Outcomes not yet on their way to the store."""
    others: int = 0
    """How many of them are not DONE."""
    due: timedelta | None = None
    """The shortest delay among them. None: no job goes back with one."""
    first_end: float = 0.0
    busy: int = 0
    """Calls to the store under way that may end this lease."""
    flying: bool = False
    """A batch is under way to the store. The next one waits for the answer."""
    lost: bool = False
    news: list[NewJob] | None = None
    """Deliveries of webhooks, to be enqueued before the outcomes in `ended` are settled."""
    parents: list[tuple[int, tuple[JobId, JobState]]] | None = None
    """Positions and ends of jobs whose children are cancelled when the outcomes in `ended` are settled."""
    limited: bool = False
    """Some of its jobs hold units of limits."""
    kinds: Kinds | None = None
    """The queue and task of its jobs, if it is so large that only some of its attempts are measured."""
    weights: bytes = EACH
    """For how many attempts the one at each position stands in the times of history. 0: it is not measured."""
    measured: list[Measured] = []
    """When attempts with outcomes in `ended` ended, for history."""
    reported: bool = False
    """A task has reported. The reporter writes the last report before the lease's next settlement."""

    @property
    def ending(self) -> bool:
        """A call under way may end the lease, so its absence does not mean that it was lost."""
        return self.busy > 0 or any(attempt is not None and attempt.completed for attempt in self.attempts)


@dataclass(slots=True)
class Counters:
    """Numbers of jobs by what the worker did with them."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    crashed: int = 0
    lost: int = 0
    """Another worker took their lease over before they were settled."""

    def as_dict(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class DeadlineWatch:
    """The store's clock, read at times and continued by the monotonic clock. The local wall clock may be wrong."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead: float | None = None

    @property
    def is_set(self) -> bool:
        return self._ahead is not None

    async def set(self, store: Store) -> None:
        """Set the watch by the store's answer and the moment of the request. It may be fast, never slow."""
        asked = monotonic()
        self.set_to(await store.now(), asked)

    def set_to(self, now: datetime, asked: float) -> None:
        """The store said this time in an answer to a call that began at `asked` on the monotonic clock."""
        self._ahead = now.timestamp() - asked

    def now(self) -> float:
        """Seconds since 1970 by the store's clock."""
        assert self._ahead is not None  # set before the first claim
        return monotonic() + self._ahead

    def about(self) -> float:
        """As `now`, or by the clock of this machine while that of the store is unknown."""
        return time() if self._ahead is None else monotonic() + self._ahead


class WorkerState:
    """The state that the services of one worker share."""

    completer: Completing
    feedback: Governing
    reporter: Reporting
    step_writer: StepWriter

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        store: Store,
        settings: Settings,
        *,
        id: WorkerId,
        queues: tuple[str, ...],
        page: SharedPage | None = None,
        delivery_maker: DeliveryMaker | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.tasks = tasks
        self.store = store
        self.settings = settings
        self.max_result = settings.max_result
        self.id = id
        self.queues = queues
        self.name = own_name()
        self.page = page
        self.delivery_maker = delivery_maker or DeliveryMaker(())
        self.leases: dict[Token, HeldLease] = {}
        self.counters = Counters()
        self.calls = StoreCalls()
        self.reachable = True
        """The store answered the last heartbeat."""
        self.failures = FailureLog()
        self.job_log = JobLog(settings.job_log_level)
        self.failure_hooks: FailureHooks | None = None
        """None: the app declares no `on_failure` hook."""
        self.hooks = hooks or Hooks()
        self.watch = DeadlineWatch()
        self.tally = Tally(self.watch.about)
        self.open_now = OpenNow({}, self.watch.now)
        self.listeners: list[Listener] = list(self.hooks.listeners)
        self.observed = bool(self.listeners)
        """Each start and end of a job is told: there are listeners, or the log takes lines about it."""
        self.paused: Mapping[str, Pause] = {}
        """Paused tasks, as of the last look."""
        self.upkeep = True
        """This worker does upkeep: it promotes, reaps, prunes and ticks. The answers to its heartbeats decide."""
        self.ready_known = False
        """The answer to the last heartbeat said whether there is something to claim."""
        self.reaping = False
        """A reap is under way. It may renew an expired lease of this worker, so a missing lease is not lost."""
        self.quiet = False
        """Nothing more is claimed: the worker drains, or it got SIGTSTP."""
        self.quarantine = False
        """A suspect runs alone, or is about to: nothing else is claimed."""
        self.reserved = False
        """The only free slots are reserved for other priorities."""
        self.attentive = False
        """The limit feedback gets every outcome, also successes."""
        self.damage: StoreDamaged | None = None
        """Why the store can never accept anything from this worker again."""
        self.damaged = asyncio.Event()
        self._known: dict[str, ResolvedTask] = {}
        self._marking = Lock()

    @property
    def info(self) -> WorkerInfo:
        """What hooks may know of this worker."""
        return WorkerInfo(id=str(self.id), name=self.name, queues=self.queues, concurrency=self.settings.concurrency)

    @property
    def hears(self) -> bool:
        """Hints of other processes reach the store object, so that the worker need not ask often."""
        # Looked up by name, so that it also works for a wrapped store.
        return getattr(self.store, "hears", False)

    def paused_now(self) -> Mapping[str, Pause]:
        """Tasks whose jobs must not start, by name."""
        if not self.paused:
            return self.paused
        now = self.watch.now()
        return {
            name: pause for name, pause in self.paused.items() if pause.until is None or pause.until.timestamp() > now
        }

    def known(self, name: str) -> ResolvedTask | None:
        """The task of that name. An unknown task is looked up again, because it may be declared later."""
        if (known := self._known.get(name)) is not None:
            return known
        task = start_task() if name == UNDO else self.tasks.get(name)
        if task is not None:
            known = self._known[name] = ResolvedTask(task, has_webhook=self.delivery_maker.concerns(name))
        return known

    def take(self, lease: Lease) -> HeldLease:
        held = HeldLease(self, lease.token, suspect=lease.suspect)
        self.leases[lease.token] = held
        self.counters.claimed += len(lease.jobs)
        # Once per lease, so that the level may change while the worker runs and a job costs nothing.
        self.observed = self.job_log.refresh() or bool(self.listeners)
        if self.job_log.on:
            self.job_log.claimed(lease.jobs, self.name)
        if self.page is not None:
            self._show(self.page, held, lease)
        if self.listeners:
            self.emit("lease.claimed", token=lease.token, jobs=len(lease.jobs), suspect=lease.suspect)
        return held

    def priorities(self) -> Iterator[int]:
        """Ids of all jobs that run or wait here."""
        for held in self.leases.values():
            for attempt in held.attempts:
                if attempt is not None:
                    yield attempt.job.priority

    def add(self, held: HeldLease) -> None:
        self.leases[held.token] = held
        if self.page is not None:
            held.place = self.page.add(PageEntry(held.token, 1, 1))

    def held_of(self, orphan: Orphan) -> HeldLease | None:
        """The held lease that `reap` returned. None: this worker no longer holds it."""
        position, job = orphan.jobs[0] if orphan.jobs else (0, None)
        if job is None:
            return None
        claimed = (job.batch, job.ord, job.attempt)
        for held in self.leases.values():
            if not held.lost and position < len(held.jobs) and held.jobs[position] == claimed:
                return held
        return None

    def renew(self, held: HeldLease, token: Token) -> None:
        """Give the lease a fresh token, which every later write uses."""
        del self.leases[held.token]
        held.token = token
        self.leases[token] = held
        if self.page is not None and held.place:
            self.page.rename(held.place, token)

    def drop(self, held: HeldLease) -> None:
        """Remove a lease that has ended or was lost."""
        if self.leases.pop(held.token, None) is not None and self.page is not None and held.place:
            self.page.remove(held.place)
            held.place, held.mark = 0, NEVER

    def tell_failure(self, job: Claimed, settlement: Settlement) -> None:
        """Log the failure or the death, if it is one, and hand it to the hooks."""
        self.failures.tell(job, settlement)
        if self.failure_hooks is not None:
            self.failure_hooks.take(job, settlement, self.watch.now())

    def emit(self, event: str, /, **fields: Any) -> None:
        """Call the listeners. Callers on the hot path check `listeners` first."""
        for listener in self.listeners:
            try:
                listener(event, fields)
            except Exception:
                log.exception("a listener failed on %s", event)

    # ── on the shared page ──────────────────────────────────────────────────
    def _show(self, page: SharedPage, held: HeldLease, lease: Lease) -> None:
        """Show a lease that the supervisor may hand back: unstarted jobs without failures, or a waiting suspect."""
        size = len(lease.jobs)
        if lease.suspect:
            held.place = page.add(_suspect(held, lease.jobs[0], noted=False))
            return
        first = 0
        for position, job in enumerate(lease.jobs):
            if job.failures or job.crashes:
                first = position + 1
        held.place = page.add(PageEntry(held.token, first, size))
        held.mark = first if held.place else NEVER

    def mark(self, held: HeldLease, position: int) -> None:
        """The attempt at this position starts. The supervisor treats all earlier positions as started, too."""
        with self._marking:
            if self.page is not None and held.place and position >= held.mark:
                size = len(held.jobs)
                held.mark = min(size, position + 1 + size // MARKS)
                self.page.mark(held.place, held.mark)

    def blame(self, held: HeldLease) -> None:
        """A suspect starts alone in an ordinary slot. If the worker dies, the crash counts against it."""
        if self.page is not None and held.place:
            self.page.write(held.place, PageEntry(held.token, 1, 1))

    def excuse(self, held: HeldLease, job: Claimed) -> None:
        """A suspect runs beside other jobs. If the worker dies, the crash does not count against it."""
        if self.page is not None and held.place:
            self.page.write(held.place, _suspect(held, job, noted=True))


def _suspect(held: HeldLease, job: Claimed, *, noted: bool) -> PageEntry:
    return PageEntry(held.token, 0, 1, job.attempt, job.failures, job.crashes, suspect=True, noted=noted)
