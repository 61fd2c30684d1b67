"""What a worker holds: leases, the attempts in them, and the running figures. No decisions here."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from headrace.errors import StoreDamaged
from headrace.model.job import Claimed, NewJob
from headrace.model.lease import Lease, Orphan, Token, WorkerId
from headrace.model.outcome import DONE, Outcome, Settlement
from headrace.model.records import Pause
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.task.limit import Limit
from headrace.webhooks.deliver import DeliveryMaker
from headrace.worker.attempt import Attempt, ResolvedTask
from headrace.worker.failure_log import FailureLog
from headrace.worker.shared_page import PageEntry, SharedPage

if TYPE_CHECKING:
    from headrace.task.task import Task

log = logging.getLogger("headrace.worker")

MAX_CLAIM = 500
NEVER: Final = 1 << 30
MARKS: Final = 32
"""Starts of a lease that are written to the board, at most: in a large lease one stands for those that follow, too."""
DONE_AT: Final = tuple((position, DONE) for position in range(1000))
"""The settlement of a job that ended well, by position: shared, so that the common job costs no object."""

Listener = Callable[[str, Mapping[str, Any]], None]


class Governing(Protocol):
    """Hears what becomes of jobs that have limits."""

    def saw(self, attempt: Attempt, outcome: Outcome) -> None: ...

    def trip(self, attempt: Attempt, limit: Limit, until: timedelta | datetime) -> None: ...


class Completing(Protocol):
    """Completes a job inside the user's transaction."""

    async def complete(self, attempt: Attempt, result: Any, tx: object) -> None: ...

    def complete_sync(self, attempt: Attempt, result: Any, tx: object) -> None: ...


class Reporting(Protocol):
    """Writes what running tasks say of their jobs."""

    def take(
        self, attempt: Attempt, *, progress: float | None = None, note: str | None = None, line: str | None = None
    ) -> None: ...

    async def flush(self, held: HeldLease) -> None:
        """Write what there is for this lease, now."""
        ...


class HeldLease:
    """A lease in this worker's hands."""

    __slots__ = (
        "attempts",
        "busy",
        "claimed_at",
        "ended",
        "first_end",
        "flying",
        "jobs",
        "limited",
        "lost",
        "mark",
        "news",
        "open",
        "others",
        "place",
        "reported",
        "state",
        "suspect",
        "token",
    )

    def __init__(self, state: WorkerState, token: Token, *, suspect: bool) -> None:
        self.state = state
        self.token = token
        self.suspect = suspect
        self.claimed_at = monotonic()
        self.attempts: list[Attempt | None] = []
        """By position; None where it is over."""
        self.jobs: list[tuple[UUID, int, int]] = []
        """Batch, ord and attempt number by position; they stay when an attempt is over."""
        self.mark = NEVER
        """An attempt from this position on has its start written to the board."""
        self.place = 0
        """Where it stands on the board; 0: nowhere."""
        self.open = 0
        """Attempts without an outcome."""
        self.ended: list[tuple[int, Settlement]] = []
        """Outcomes not yet on their way to the store."""
        self.others = 0
        """How many of them are not DONE."""
        self.first_end = 0.0
        self.busy = 0
        """Calls to the store under way that may end this lease."""
        self.flying = False
        """A batch of it is on its way to the store; the next one waits for the answer."""
        self.lost = False
        self.news: list[NewJob] | None = None
        """Deliveries of webhooks, to be enqueued before the outcomes in `ended` are settled."""
        self.limited = False
        """Some of its jobs hold units of limits."""
        self.reported = False
        """A task of it has reported: the last state is written before the lease's next settlement."""

    @property
    def ending(self) -> bool:
        """It may be over by right at any moment: its absence proves nothing."""
        return self.busy > 0 or any(attempt is not None and attempt.completed for attempt in self.attempts)


@dataclass(slots=True)
class Counters:
    """What a worker did so far, in jobs."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    snoozed: int = 0
    cancelled: int = 0
    released: int = 0
    crashed: int = 0
    lost: int = 0
    """Their lease was somebody else's before they could be settled."""

    def as_dict(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class DeadlineWatch:
    """The store's clock, read from time to time and carried on by the monotonic one: this machine's own may be wrong."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead: float | None = None

    @property
    def is_set(self) -> bool:
        return self._ahead is not None

    async def set(self, store: Store) -> None:
        """By the store's answer as of the moment of asking: this watch may be fast by the way there, never slow."""
        asked = monotonic()
        self._ahead = (await store.now()).timestamp() - asked

    def now(self) -> float:
        """Seconds since 1970 by the store's clock."""
        assert self._ahead is not None  # set before the first claim
        return monotonic() + self._ahead


class WorkerState:
    """Everything the rooms of one worker share."""

    completer: Completing
    feedback: Governing
    reporter: Reporting

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
    ) -> None:
        self.tasks = tasks
        self.store = store
        self.settings = settings
        self.max_result = settings.max_result
        self.id = id
        self.queues = queues
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.page = page
        self.delivery_maker = delivery_maker or DeliveryMaker(())
        self.leases: dict[Token, HeldLease] = {}
        self.counters = Counters()
        self.failures = FailureLog()
        self.watch = DeadlineWatch()
        self.listeners: list[Listener] = []
        self.paused: Mapping[str, Pause] = {}
        """Tasks that somebody has paused, as far as this worker knows."""
        self.reaping = False
        """A reap is on its way, which may renew a lease of this worker that had expired: its absence proves nothing."""
        self.quiet = False
        """Nothing more is claimed: the worker drains, or was told so."""
        self.quarantine = False
        """A suspect runs alone, or is about to: nothing else is claimed."""
        self.reserved = False
        """The only free slots are reserved for other priorities."""
        self.attentive = False
        """The limit feedback is told of every job, also of those that end well."""
        self.damage: StoreDamaged | None = None
        """Why the store can never take anything from this worker again."""
        self.damaged = asyncio.Event()
        self._known: dict[str, ResolvedTask] = {}
        self._marking = Lock()

    def paused_now(self) -> Mapping[str, Pause]:
        """Tasks whose jobs must not start, by name."""
        if not self.paused:
            return self.paused
        now = self.watch.now()
        return {
            name: pause for name, pause in self.paused.items() if pause.until is None or pause.until.timestamp() > now
        }

    def known(self, name: str) -> ResolvedTask | None:
        """The task of that name; found again when it was declared late."""
        if (known := self._known.get(name)) is None and (task := self.tasks.get(name)) is not None:
            known = self._known[name] = ResolvedTask(task, told=self.delivery_maker.concerns(name))
        return known

    def take(self, lease: Lease) -> HeldLease:
        held = HeldLease(self, lease.token, suspect=lease.suspect)
        self.leases[lease.token] = held
        self.counters.claimed += len(lease.jobs)
        if self.page is not None:
            self._show(self.page, held, lease)
        if self.listeners:
            self.emit("lease.claimed", token=lease.token, jobs=len(lease.jobs), suspect=lease.suspect)
        return held

    def priorities(self) -> Iterator[int]:
        """Of every job that runs or waits here."""
        for held in self.leases.values():
            for attempt in held.attempts:
                if attempt is not None:
                    yield attempt.job.priority

    def add(self, held: HeldLease) -> None:
        self.leases[held.token] = held
        if self.page is not None:
            held.place = self.page.add(PageEntry(held.token, 1, 1))

    def held_of(self, orphan: Orphan) -> HeldLease | None:
        """The lease in this worker's hands that `reap` took over; None: it is not held here any more."""
        position, job = orphan.jobs[0] if orphan.jobs else (0, None)
        if job is None:
            return None
        claimed = (job.batch, job.ord, job.attempt)
        for held in self.leases.values():
            if not held.lost and position < len(held.jobs) and held.jobs[position] == claimed:
                return held
        return None

    def renew(self, held: HeldLease, token: Token) -> None:
        """The lease goes on under a fresh token: every later write carries that one."""
        del self.leases[held.token]
        held.token = token
        self.leases[token] = held
        if self.page is not None and held.place:
            self.page.rename(held.place, token)

    def drop(self, held: HeldLease) -> None:
        """The lease is over, one way or the other."""
        if self.leases.pop(held.token, None) is not None and self.page is not None and held.place:
            self.page.remove(held.place)
            held.place, held.mark = 0, NEVER

    def emit(self, event: str, /, **fields: Any) -> None:
        """Tell whoever listens. Callers on the hot path look at `listeners` first."""
        for listener in self.listeners:
            try:
                listener(event, fields)
            except Exception:
                log.exception("a listener failed on %s", event)

    # ── on the board ────────────────────────────────────────────────────────
    def _show(self, page: SharedPage, held: HeldLease, lease: Lease) -> None:
        """What the supervisor may hand back: jobs that have not started and never failed, or a suspect that waits."""
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
        """The attempt at this position starts, and with it none before it can be told from one that has."""
        with self._marking:
            if self.page is not None and held.place and position >= held.mark:
                size = len(held.jobs)
                held.mark = min(size, position + 1 + size // MARKS)
                self.page.mark(held.place, held.mark)

    def blame(self, held: HeldLease) -> None:
        """A suspect starts alone among the slots: should the worker die, the crash is its own."""
        if self.page is not None and held.place:
            self.page.write(held.place, PageEntry(held.token, 1, 1))

    def excuse(self, held: HeldLease, job: Claimed) -> None:
        """A suspect runs beside other jobs: should the worker die, the crash is not known to be its own."""
        if self.page is not None and held.place:
            self.page.write(held.place, _suspect(held, job, noted=True))


def _suspect(held: HeldLease, job: Claimed, *, noted: bool) -> PageEntry:
    return PageEntry(held.token, 0, 1, job.attempt, job.failures, job.crashes, suspect=True, noted=noted)
