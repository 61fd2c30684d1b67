"""TIDY: promote due jobs, reap expired leases, prune old jobs.

A few workers of a fleet do it (see `WorkerState.upkeep`). Any number of them may, because the verbs are atomic.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from time import monotonic
from typing import Any, cast

from headrace.errors import HeadraceError
from headrace.model.job import Claimed, Job
from headrace.model.lease import Orphan
from headrace.model.outcome import Lost, Settlement
from headrace.model.records import Promoted, Retention
from headrace.operate.children import cancel_children
from headrace.operate.dead import dropped
from headrace.policy.effective import DEFAULTS, Effective, effective, settlement
from headrace.policy.explain.sentences import count
from headrace.policy.history import end_of
from headrace.policy.queue import QueueOptions, dead_retentions
from headrace.runtime import faults
from headrace.sink.sink import sink_of
from headrace.store.contract import Hinting
from headrace.store.repeating import Repeating
from headrace.webhooks.deliver import batches_of
from headrace.worker.children import ended_parent
from headrace.worker.dead_alert import LOOK_EVERY, DeadAlertLog
from headrace.worker.history import FOLD_EVERY, HistoryUpkeep
from headrace.worker.polls import repeat_seconds
from headrace.worker.service import Backoff, OutageLog, Service, log
from headrace.worker.state import WorkerState

PROMOTE_AT_LEAST = 1.0
PROMOTE_HEARING = 10
"""How many times less often `promote` runs while the store tells when there is something to promote."""
REAP_SELDOM = 5
"""`promote` tells when there is something to reap. In case it hangs, `reap` also runs by itself, so many times less often."""
HINTED_PROMOTE = 0.25
"""Seconds between two calls of `promote` for hints. Many hints may come at once."""
SOON = 0.02
"""Seconds between two calls of `promote` for leases that are about to expire."""
LOOK_AGAIN = 1.0
"""Seconds between two looks whether there is anything to listen to. They make no call."""
LISTEN = 30.0
"""Seconds for which the janitor listens in one call."""
PRUNE_EVERY = 60.0
SINK_SHARE = 0.2
"""The part of the time for which a worker copies ends to ClickHouse while many wait. Its jobs come first."""
BATCH = 1000
SAY_EVERY = 60.0
EARLY, MOMENT = timedelta(milliseconds=100), timedelta(milliseconds=1)
"""How much the clock of the store may be behind the time at which a worker expects a job to be due, and the next look."""


class Chore(Service):
    """One periodic chore of the janitor. Chores do not wait for each other, and a failure ends only its own."""

    def __init__(
        self, name: str, do: Callable[[], Awaitable[float]], *, on_duty: Callable[[], bool], first: float = 0.0
    ) -> None:
        super().__init__()
        self.name = name
        self._do = do
        self._on_duty = on_duty
        self._backoff = Backoff()
        self._outage = OutageLog(f"upkeep ({name})")
        self._at = monotonic() + first
        self._hastened = inf
        """When this worker itself knows that there is something to do, on duty or not."""

    def hasten(self, at: float) -> None:
        """Run at that time at the latest, because something will be due."""
        if at < self._hastened:
            self._hastened = at
            self.bell.ring()

    def begin(self) -> None:
        """Run at once, because this worker is on duty from now on."""
        self._at = monotonic()
        self.bell.ring()

    async def run(self) -> None:
        while True:
            at = min(self._hastened, self._at if self._on_duty() else inf)
            if at > (now := monotonic()):
                await self.bell.wait(at - now if at < inf else None)
                continue
            self._hastened = inf  # A later call of `hasten` takes effect.
            wait = self._backoff.next()  # Taken first, so that an unexpected error counts, too.
            try:
                wait = await self._do()
            except HeadraceError as error:
                self._outage.raise_(error)
                self.hasten(monotonic() + wait)
            else:
                self._outage.settle()
                self._backoff.reset()
            finally:
                self._at = monotonic() + wait


class DueListener(Service):
    """Listens for times that are earlier than the last `promote` said, while this worker is on duty and its store hears."""

    name = "due listener"

    def __init__(self, store: Hinting, *, on_duty: Callable[[], bool], heard: Callable[[timedelta], None]) -> None:
        super().__init__()
        self._store = store
        self._on_duty = on_duty
        self._heard = heard
        self._backoff = Backoff()
        self._outage = OutageLog("listening for delayed jobs")

    async def run(self) -> None:
        while True:
            if not self._on_duty():
                # The store may begin to hear at any time, and says nothing about it.
                await self.bell.wait(LOOK_AGAIN)
                continue
            try:
                after = await self._store.wait_due(LISTEN)
            except HeadraceError as error:
                self._outage.raise_(error)
                await self.bell.wait(self._backoff.next())
                continue
            self._outage.settle()
            self._backoff.reset()
            if after is not None:
                self._heard(after)


class Janitor:
    """Its chores, each with jitter, so that many workers do not call the store at the same time."""

    def __init__(
        self,
        state: WorkerState,
        *,
        work: Callable[[], None],
        alert_log: DeadAlertLog,
        queues: Mapping[str, QueueOptions],
        looks: Callable[[], bool] | None = None,
    ) -> None:
        """`looks`: whether this worker now looks for the jobs of its queues by itself. None: it serves none."""
        self._state = state
        self._work = work
        self._alert_log = alert_log
        self._queues = queues
        self._said_stuck: dict[str, float] = {}
        self._promoting = self._chore("promote", self._promote)
        self._reaping = self._chore("reap", self._reap)
        self._promoted_at = -inf
        """When `promote` was called last, on the monotonic clock."""
        self._look_at = -inf
        """When `promote` is called next."""
        self._expired = False
        """The last answer of `promote` said that leases may have expired."""
        self.chores = [
            self._promoting,
            self._reaping,
            self._chore("prune", self._prune, random.uniform(0.2, 1.0) * PRUNE_EVERY),
        ]
        if not state.settings.is_remote:
            # The server folds what its workers write.
            history = HistoryUpkeep(state.store, state.settings.keep_history)
            self.chores.append(self._chore("history", history.tidy, random.uniform(0.2, 1.0) * FOLD_EVERY))
            if state.settings.history_url:
                holder = f"{state.name} {state.id}"
                sink = sink_of(state.store, state.settings.history_url, holder=holder, share=SINK_SHARE)
                self.chores.append(self._chore("history sink", sink.tidy, random.uniform(0.0, 1.0)))
        self.listener: DueListener | None = None
        if hasattr(state.store, "wait_due"):
            self.listener = DueListener(
                cast("Hinting", state.store), on_duty=lambda: state.upkeep and state.hears, heard=self._heard_of
            )
        if looks is not None and hasattr(state.store, "repeat_hints"):
            self.chores.append(self._chore("hints", partial(self._repeat_hints, cast("Repeating", state.store), looks)))
        if alert_log.watches:
            self.chores.append(self._chore("dead alert", alert_log.look, random.uniform(0.0, 0.2) * LOOK_EVERY))

    def _chore(self, name: str, do: Callable[[], Awaitable[float]], first: float = 0.0) -> Chore:
        return Chore(name, do, on_duty=lambda: self._state.upkeep, first=first)

    def due(self, wait: timedelta) -> None:
        """Promote after this time at the latest, because something will be due."""
        self._promoting.hasten(monotonic() + wait.total_seconds())

    @property
    def services(self) -> list[Service]:
        return [*self.chores, *([] if self.listener is None else [self.listener])]

    def begin(self) -> None:
        """This worker is one of those that do the upkeep from now on."""
        for chore in self.chores:
            chore.begin()
        if self.listener is not None:
            self.listener.bell.ring()

    async def stop(self) -> None:
        for service in self.services:
            await service.stop()
        await self._alert_log.stop()

    def _heard_of(self, after: timedelta) -> None:
        """The store says that something will be due after this time."""
        self._promoting.hasten(max(monotonic() + after.total_seconds(), self._promoted_at + HINTED_PROMOTE))

    async def _promote(self) -> float:
        self._promoted_at = monotonic()
        promoted = await self._state.calls.timed("promote", self._state.store.promote(BATCH))
        if faults.ARMED and promoted.moved:
            faults.reach("opening")
        wait = self._until_next(promoted)
        self._look_at = monotonic() + wait
        if promoted.moved:
            self._work()
        elif promoted.next_due is not None and promoted.next_due < EARLY:
            # The call came a moment too early for a job that this worker waits for, by the store's clock. Off duty there is no
            # other call.
            self.due(max(promoted.next_due, MOMENT))
        if promoted.expired:
            self._expired = True
            self._reaping.hasten(monotonic())
        return wait

    def _until_next(self, promoted: Promoted) -> float:
        """Seconds until the next call of `promote`, by the answer to the last one."""
        if promoted.moved >= BATCH:
            return 0.0
        state = self._state
        wait = min(PROMOTE_AT_LEAST, state.settings.reap.total_seconds()) * random.uniform(0.8, 1.0)
        if state.hears and self.listener is not None and not promoted.expired:
            # A lease that begins after this call must not expire before the next one, which learns when it expires.
            wait = max(wait, min(PROMOTE_HEARING * wait, state.settings.lease.total_seconds() / 2))
        if promoted.next_due is not None:
            wait = min(wait, max(0.001, promoted.next_due.total_seconds()))
        if promoted.next_expiry:
            wait = min(wait, max(SOON, promoted.next_expiry.total_seconds()))
        return wait

    async def _repeat_hints(self, store: Repeating, looks: Callable[[], bool]) -> float:
        """Repeat hints that were lost while this worker has no room for the jobs that it would find by its own polls."""
        state = self._state
        if state.hears and not looks():
            await store.repeat_hints(state.queues)
        return repeat_seconds(state) * random.uniform(0.9, 1.0)

    async def _reap(self) -> float:
        state = self._state
        wait = REAP_SELDOM * state.settings.reap.total_seconds() * random.uniform(0.8, 1.2)
        late = self._look_at + wait - monotonic()
        if not self._expired and late > 0:
            # No lease has expired, and `promote` is not late.
            return late
        state.reaping = True
        try:
            reaped = await state.calls.timed("reap", state.store.reap(state.id, state.settings.lease))
            orphans = [orphan for orphan in reaped if not self._renewed(orphan)]
        finally:
            state.reaping = False
        self._expired = bool(reaped)
        if orphans and not state.watch.is_set:
            await state.watch.set(state.store)  # A job with a deadline is settled by the store's clock.
        failed: HeadraceError | None = None
        for orphan in orphans:
            # An orphan that cannot be settled must not delay the others.
            try:
                await self._rehome(orphan)
            except HeadraceError as error:
                failed = error
            except Exception:  # noqa: BLE001  # a store's bug with one lease is not the others'
                self._say_stuck(orphan)
        if orphans:
            self._work()
        if failed is not None:
            raise failed
        return 0.0 if reaped else wait

    def _renewed(self, orphan: Orphan) -> bool:
        """Whether this worker holds the lease itself. Heartbeats were late, and its jobs go on here."""
        held = self._state.held_of(orphan) if orphan.worker == self._state.id else None
        if held is None:
            return False
        log.warning(
            "heartbeats were late: a lease of this worker with %s had expired and is renewed",
            count(len(orphan.jobs), "job"),
            extra={"event": "lease.renewed", "jobs": len(orphan.jobs)},
        )
        self._state.renew(held, orphan.token)
        return True

    def _say_stuck(self, orphan: Orphan) -> None:
        """Log it at most once a minute per job, because the store returns the lease each time it expires."""
        now = monotonic()
        self._said_stuck = {id: until for id, until in self._said_stuck.items() if until > now}
        ids = [str(job.id) for _, job in orphan.jobs]
        if any(id not in self._said_stuck for id in ids):
            self._said_stuck.update(dict.fromkeys(ids, now + SAY_EVERY))
            log.exception(
                "the jobs %s of a lost worker cannot be settled; a worker tries again when their lease expires",
                ", ".join(ids[:5]) + (" …" if len(ids) > 5 else ""),
                extra={"event": "lease.stuck", "jobs": len(ids)},
            )

    async def _rehome(self, orphan: Orphan) -> None:
        """Decide what follows for the jobs of a lost worker, and settle them under the token that `reap` returned."""
        settlements = [(position, self._decide(job, orphan)) for position, job in orphan.jobs]
        log.warning(
            "worker %s is lost (%s): this worker settles %d of its jobs",
            orphan.worker,
            orphan.cause,
            len(settlements),
            extra={"event": "lease.reaped", "jobs": len(settlements), "cause": orphan.cause},
        )
        self._state.emit("lease.reaped", worker=orphan.worker, cause=orphan.cause, jobs=len(settlements))
        news = [
            delivery
            for (_, job), (_, follows) in zip(orphan.jobs, settlements, strict=True)
            for delivery in self._state.delivery_maker.news(job, follows)
        ]
        # If this fails, the lease expires and is reaped again.
        for batch in batches_of(news):
            await self._state.store.enqueue(batch)
        refused = await self._state.store.settle(orphan.token, settlements)
        for (_, job), (_, follows) in zip(orphan.jobs, settlements, strict=True):
            self._state.tell_failure(job, follows)
            if (end := end_of(follows)) is not None:
                self._state.tally.add(job, end)
        parents = [
            parent
            for (position, job), (_, follows) in zip(orphan.jobs, settlements, strict=True)
            if position not in refused and (parent := ended_parent(job, follows)) is not None
        ]
        if parents:
            await cancel_children(self._state.store, parents)

    def _decide(self, job: Claimed, orphan: Orphan) -> Settlement:
        lost = Lost(cause=orphan.cause, own=orphan.suspect, at=datetime.now(UTC))
        return settlement(job, lost, effective(job, self._usual(job.task)), self._state.watch.now)

    def _usual(self, task: str) -> Effective:
        known = self._state.known(task)
        return DEFAULTS if known is None else known.usual

    def _arguments(self, job: Job) -> Any:
        """The job's arguments, if its queue shows them, masked by its task's rules. None for an unknown task."""
        queue = self._queues.get(job.queue)
        task = self._state.tasks.get(job.task) if queue is not None and queue.dead_arguments else None
        return None if task is None else task.codec.show(job.payload, effective(job, self._usual(job.task)).redact)

    async def _prune(self) -> float:
        settings = self._state.settings
        keep = Retention(done=settings.keep_done, dead=settings.keep_dead, dead_by_queue=dead_retentions(self._queues))
        pruned = await self._state.calls.timed("prune", self._state.store.prune(keep))
        expired = await dropped.expire(self._state.store, keep, by=self._state.name, arguments=self._arguments)
        # Each call prunes a bounded number, so that other calls of the store do not wait long.
        if pruned.more or expired.more:
            return 0.1
        # A store in which nothing has ended for long is asked half as often.
        return PRUNE_EVERY * random.uniform(0.8, 1.2) * (1 if pruned.jobs or expired.jobs else 2)
