"""SETTLE: outcomes → decide() → batches per lease → store.settle, repeated until the store answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from time import monotonic

from headrace.model.outcome import Again, Cancelled, Failed, Lost, Outcome, Released, Settlement, Snoozed, Succeeded
from headrace.model.rollup import AttemptEnd
from headrace.policy.effective import settlement
from headrace.policy.explain.sentences import count
from headrace.policy.history import end_of
from headrace.worker.attempt import Attempt
from headrace.worker.attempt_meter import tell_end, tell_successes
from headrace.worker.children import ChildCanceller, parent_of
from headrace.worker.service import Bell, Service, log
from headrace.worker.state import DONE_AT, HeldLease, WorkerState
from headrace.worker.writer import Writer

PATIENT, HURRIED = 0.05, 0.008
"""Seconds that an outcome may wait for others of its lease: while the worker has other work, while it has none."""
MAX_CALLS = 3
"""Settlements under way at once. One of the store's four connections stays free for claims and upkeep."""

_TOLD = (Failed, Lost, Snoozed)
"""Outcomes that may be a failure or a death to log. A tuple, because a union would be made anew for each job."""


class Settler(Service):
    """Collects outcomes by lease and hands each to the store exactly once."""

    name = "settler"

    def __init__(
        self,
        state: WorkerState,
        *,
        idle: Callable[[], bool],
        lose: Callable[[HeldLease], None],
        freed: Callable[[HeldLease], None],
        due: Callable[[timedelta], None],
    ) -> None:
        super().__init__()
        self._state = state
        self._idle = idle
        self._lose = lose
        self._freed = freed
        self._due = due
        self._complete: deque[HeldLease] = deque()
        self._partial: dict[HeldLease, None] = {}
        """Leases with outcomes that still have attempts under way, oldest outcome first."""
        self._calls: set[asyncio.Task[None]] = set()
        self.writer = Writer(state)
        self._canceller = ChildCanceller(state.store)
        self.over = Bell()
        """Rung when the last job of a lease has ended."""
        self._lasted = 0.0
        """Seconds from the claim of that lease until then."""
        self.settled = 0
        """Outcomes handed to the store so far. The fetcher computes the worker's pace from it."""
        self.draining = False

    @property
    def failing(self) -> bool:
        """The store accepts no results, so the worker claims nothing more."""
        return self.writer.failing

    # ── called for every job ────────────────────────────────────────────────
    def done(self, held: HeldLease, position: int) -> bool:
        """The attempt succeeded and returned nothing. True: it was the lease's last."""
        if held.weights[position] and (attempt := held.attempts[position]) is not None:
            held.measured.append((attempt, monotonic(), None))
        held.attempts[position] = None
        held.open -= 1
        ended = held.ended
        if not ended:
            self._first(held)
        ended.append(DONE_AT[position])
        if not held.open:
            self._finish(held)
            return True
        return False

    def take(self, attempt: Attempt, outcome: Outcome) -> None:
        """The attempt ended: decide what follows."""
        held = attempt.held
        # `decide` comes first: if it fails, the attempt stays unchanged.
        follows = settlement_of(attempt, outcome)
        self._count(outcome)
        held.attempts[attempt.position] = None
        held.open -= 1
        meter = self._state.hooks.meter
        if meter is not None and (held.lost or not isinstance(outcome, Succeeded)):
            tell_end(meter, attempt, outcome)
        if held.lost:
            self._state.counters.lost += 1
            return
        if not held.ended:
            self._first(held)
        held.ended.append((attempt.position, follows))
        if (end := end_of(follows)) is not None:
            held.measured.append((attempt, monotonic(), end))
        if isinstance(outcome, _TOLD):
            self._state.tell_failure(attempt.job, follows)
        if (attempt.job.options is not None or attempt.known.has_webhook) and (
            news := self._state.delivery_maker.news(attempt.job, follows)
        ):
            held.news = news if held.news is None else held.news + news
        if (parent := parent_of(attempt, follows)) is not None:
            held.parents = [*(held.parents or ()), (attempt.position, parent)]
        held.others += 1
        if (
            isinstance(follows, Again)
            and isinstance(due := follows.due, timedelta)
            and (held.due is None or due < held.due)
        ):
            held.due = due
        if self._state.job_log.on:
            self._state.job_log.ended(attempt.job, outcome, attempt.started)
        if self._state.listeners:
            self._state.emit("attempt.ended", id=attempt.job.id, task=attempt.job.task, outcome=outcome)
        if not held.open:
            self._finish(held)

    def leave(self, attempt: Attempt, *, succeeded: bool) -> None:
        """The attempt's job is settled already, so there is nothing to write for it."""
        self._state.counters.succeeded += succeeded
        if succeeded and self._state.job_log.on:
            self._state.job_log.ended(attempt.job, Succeeded(), attempt.started)
        if succeeded:
            self._state.tally.ended(attempt, AttemptEnd.DONE)
        if self._state.hooks.meter is not None:
            tell_end(self._state.hooks.meter, attempt, Succeeded() if succeeded else Released())
        self.settled += 1
        self.forget(attempt.held, attempt.position)
        self._freed(attempt.held)

    def forget(self, held: HeldLease, position: int) -> None:
        """An attempt left the lease. The lease's other attempts go on."""
        held.attempts[position] = None
        held.open -= 1
        if not held.open:
            if held.ended:
                self._finish(held)
            elif not held.busy:
                self._state.drop(held)

    # ── the service ─────────────────────────────────────────────────────────
    async def run(self) -> None:
        while True:
            self._submit_complete()
            await self.bell.wait(self._submit_overdue())

    async def flush(self, seconds: float) -> bool:
        """Hand over all outcomes and wait for the answers. True: nothing is left."""
        self.draining = True
        until = monotonic() + seconds
        self.bell.ring()
        while self._complete or self._partial or self._calls or self._canceller.tasks:
            left = until - monotonic()
            if left <= 0:
                return False
            self.bell.ring()
            await asyncio.sleep(min(left, 0.005))
        return True

    async def stop(self) -> None:
        await super().stop()
        calls = [*self._calls, *self._canceller.tasks]
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    def _first(self, held: HeldLease) -> None:
        held.first_end = monotonic()
        if held.open:
            if not self._partial:
                self.bell.ring()
            self._partial[held] = None

    def was_within(self, seconds: float) -> bool:
        """Whether the jobs of the last lease ended so soon after they were claimed."""
        return self._lasted <= seconds

    def _finish(self, held: HeldLease) -> None:
        self._lasted = monotonic() - held.claimed_at
        self.over.ring()
        self._partial.pop(held, None)
        if not held.lost:
            self._complete.append(held)
            self.bell.ring()

    def _submit_complete(self) -> None:
        while self._complete and len(self._calls) < MAX_CALLS:
            held = self._complete.popleft()
            if held.flying:
                # An earlier batch is under way. The rest follows after its answer.
                continue
            self._submit(held)

    def _submit_overdue(self) -> float | None:
        """Send outcomes that have waited long enough. Returns the seconds until the next one."""
        if not self._partial or len(self._calls) >= MAX_CALLS:
            return None
        patience = 0.0 if self.draining else HURRIED if self._idle() else PATIENT
        now = monotonic()
        for held in list(self._partial):
            if held.flying or held.lost:
                del self._partial[held]
                continue
            left = held.first_end + patience - now
            if left > 0:
                return left
            if len(self._calls) >= MAX_CALLS:
                return None
            del self._partial[held]
            self._submit(held)
        return None

    def _submit(self, held: HeldLease) -> None:
        call = asyncio.create_task(self._settle(held))
        self._calls.add(call)
        call.add_done_callback(self._over)

    def _over(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self.bell.ring()
        if not call.cancelled() and (error := call.exception()) is not None:
            log.error("settling raised an unexpected error", exc_info=error)

    async def _settle(self, held: HeldLease) -> None:
        batch, held.ended = held.ended, []
        others, held.others = held.others, 0
        measured, held.measured = held.measured, []
        news, held.news = held.news, None
        parents, held.parents = held.parents, None
        due, held.due = held.due, None
        self.settled += len(batch)
        if self._state.hooks.meter is not None:
            tell_successes(self._state.hooks.meter, held, batch, measured, plain=not others)
        held.flying = True
        held.busy += 1
        if self._state.page is not None:
            self._state.page.show_work()
        try:
            if held.reported:
                await self._state.reporter.flush(held)
            if news is not None:
                await self.writer.announce(held, news)
            refused, unsure = await self.writer.write(held, batch, large=others > 0)
        finally:
            held.flying = False
            held.busy -= 1
        counters = self._state.counters
        if refused:
            counters.lost += len(refused)
            if not unsure or held.open:
                # Another worker counts what was refused here.
                batch = [entry for entry in batch if entry[0] not in refused]
                measured = [entry for entry in measured if entry[0].position not in refused]
            self._say_refused(held, refused, unsure=unsure)
            self._lose(held)
        else:
            counters.succeeded += len(batch) - others
            if due is not None:
                self._due(due)
            if self._state.listeners:
                self._state.emit("job.settled", token=held.token, settlements=batch)
        if parents is not None:
            self._canceller.begin([parent for position, parent in parents if position not in refused])
        self._state.tally.settled(held, batch, measured, plain=not others)
        if held.lost or not (held.open or held.ended or held.busy):
            self._state.drop(held)
        elif not held.open:
            self._finish(held)
        elif held.ended:
            self._partial[held] = None
        self._freed(held)

    def _say_refused(self, held: HeldLease, refused: frozenset[int], *, unsure: bool) -> None:
        if unsure and not held.open:
            log.info(
                "the store refused %s that was sent again after a lost answer: most likely the first sending arrived",
                count(len(refused), "result"),
                extra={"lease": str(held.token), "jobs": len(refused)},
            )
            return
        log.warning(
            "lease lost: the worker drops %s, because another worker holds the lease now",
            count(len(refused), "result"),
            extra={"event": "lease.lost", "lease": str(held.token), "jobs": len(refused)},
        )
        self._state.emit("lease.lost", token=held.token, jobs=len(refused))

    def _count(self, outcome: Outcome) -> None:
        counters = self._state.counters
        match outcome:
            case Succeeded():
                counters.succeeded += 1
            case Failed():
                counters.failed += 1
            case Snoozed():
                counters.snoozed += 1
            case Cancelled():
                counters.cancelled += 1
            case Released():
                counters.released += 1
            case Lost():
                counters.crashed += 1


def settlement_of(attempt: Attempt, outcome: Outcome) -> Settlement:
    """What follows from an attempt's outcome, by the rules of its task and its job."""
    job, held = attempt.job, attempt.held
    own = attempt.known.usual if job.options is None else attempt.own
    advanced = attempt.journal is not None and attempt.journal.added > 0
    return settlement(job, outcome, own, held.state.watch.now, suspect=held.suspect, advanced=advanced)
