"""TIDY: promote what is due, reap what was orphaned, prune what is old. Every worker may do it: the verbs are safe."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from time import monotonic

from headrace import retry
from headrace.errors import HeadraceError
from headrace.job import Claimed
from headrace.lease import Orphan
from headrace.outcome import Lost, Settlement
from headrace.retry import Retry
from headrace.store.terms import Retention
from headrace.webhooks import batch_of
from headrace.worker.alarm import Alarm
from headrace.worker.holding import Hands
from headrace.worker.room import Backoff, Complaint, Room, log

PROMOTE_AT_LEAST = 1.0
PRUNE_EVERY = 60.0
BATCH = 1000


class Janitor(Room):
    """Its chores by the clock, each with jitter, so that many workers do not come at once."""

    name = "janitor"

    def __init__(
        self, hands: Hands, *, work: Callable[[], None], alarm: Alarm, dead_by_queue: Mapping[str, timedelta]
    ) -> None:
        super().__init__()
        self._hands = hands
        self._work = work
        self._alarm = alarm
        self._dead_by_queue = dead_by_queue
        self._backoff = Backoff()
        self._complaint = Complaint("tidying up")
        self._promote_at = 0.0
        self._reap_at = 0.0
        self._prune_at = monotonic() + random.uniform(0.2, 1.0) * PRUNE_EVERY

    def due(self, wait: timedelta) -> None:
        """Something will be due so long from now: do not sleep longer."""
        at = monotonic() + wait.total_seconds()
        if at < self._promote_at:
            self._promote_at = at
            self.bell.ring()

    async def run(self) -> None:
        while True:
            try:
                await self._chores()
            except HeadraceError as error:
                self._complaint.raise_(error)
                await asyncio.sleep(self._backoff.next())
                continue
            self._complaint.settle()
            self._backoff.reset()
            next_at = min(self._promote_at, self._reap_at, self._prune_at, self._alarm.next_at)
            await self.bell.wait(max(0.0, next_at - monotonic()))

    async def _chores(self) -> None:
        now = monotonic()
        if now >= self._promote_at:
            await self._promote()
        if now >= self._reap_at:
            await self._reap()
        if now >= self._prune_at:
            await self._prune()
        await self._alarm.look()

    async def stop(self) -> None:
        await super().stop()
        await self._alarm.stop()

    async def _promote(self) -> None:
        self._promote_at = monotonic() + PROMOTE_AT_LEAST * random.uniform(0.8, 1.0)
        promoted = await self._hands.store.promote(BATCH)
        if promoted.moved:
            self._work()
        if promoted.moved >= BATCH:
            self._promote_at = 0.0
        elif promoted.next_due is not None:
            self._promote_at = min(self._promote_at, monotonic() + max(0.001, promoted.next_due.total_seconds()))

    async def _reap(self) -> None:
        hands = self._hands
        self._reap_at = monotonic() + hands.settings.reap.total_seconds() * random.uniform(0.8, 1.2)
        orphans = await hands.store.reap(hands.id, hands.settings.lease)
        for orphan in orphans:
            await self._rehome(orphan)
        if orphans:
            self._reap_at = 0.0
            self._work()

    async def _rehome(self, orphan: Orphan) -> None:
        """Nobody settled these: decide, under the token that we took over."""
        settlements = [(position, self._decide(job, orphan)) for position, job in orphan.jobs]
        log.warning(
            "worker %s is gone (%s): %d of its jobs go on",
            orphan.worker,
            orphan.cause,
            len(settlements),
            extra={"event": "lease.reaped", "jobs": len(settlements), "cause": orphan.cause},
        )
        self._hands.emit("lease.reaped", worker=orphan.worker, cause=orphan.cause, jobs=len(settlements))
        news = [
            each
            for (_, job), (_, settlement) in zip(orphan.jobs, settlements, strict=True)
            for each in self._hands.herald.news(job, settlement)
        ]
        # Should this fail, the lease is ours now, runs out, and is reaped again.
        if news:
            await self._hands.store.enqueue(batch_of(news))
        await self._hands.store.settle(orphan.token, settlements)

    def _decide(self, job: Claimed, orphan: Orphan) -> Settlement:
        known = self._hands.known(job.task)
        policy = Retry() if known is None else known.retry
        lost = Lost(cause=orphan.cause, own=orphan.suspect, at=datetime.now(UTC))
        return retry.decide(job, lost, policy)

    async def _prune(self) -> None:
        self._prune_at = monotonic() + PRUNE_EVERY * random.uniform(0.8, 1.2)
        settings = self._hands.settings
        keep = Retention(done=settings.keep_done, dead=settings.keep_dead, dead_by_queue=self._dead_by_queue)
        pruned = await self._hands.store.prune(keep)
        if pruned.more:
            # A bounded amount at a time: promoting and reaping must not wait for it.
            self._prune_at = monotonic() + 0.1
