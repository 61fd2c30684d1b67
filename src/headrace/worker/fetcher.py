"""CLAIM: free slots → leases, prefetching as far as the worker's pace allows; else asleep in `wait`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic

from headrace import flow
from headrace.errors import HeadraceError
from headrace.flow import Order
from headrace.lease import Ask, Lease, new_token
from headrace.worker import faults
from headrace.worker.executor import Executor
from headrace.worker.governor import Governor
from headrace.worker.holding import MAX_CLAIM, Hands, Held
from headrace.worker.room import Backoff, Bell, Complaint, Room, log
from headrace.worker.settler import Settler

HORIZON = 0.025
"""Seconds of work to have in line at least, so that no slot waits for the next claim."""
MAX_LEASES = 64
"""Batches whose results the store has not taken yet: beyond, nothing more is claimed."""
COMPANY_WAIT = 10.0
"""Seconds a suspect waits for the worker to be empty; then it runs in the company that is left."""
GLANCE = 0.05
"""Seconds between two looks for jobs that reserved slots are for, while all others are taken."""


class Pace:
    """Jobs per second, and seconds per claim: how much to claim ahead."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.trip = 0.0
        self._jobs = 0
        self._at = monotonic()

    def measure(self, jobs: int) -> None:
        """`jobs` ended so far."""
        now = monotonic()
        seconds = now - self._at
        if seconds < 0.005:
            return
        fresh = (jobs - self._jobs) / seconds
        weight = min(1.0, seconds / 0.2 + 0.25)
        self.rate += (fresh - self.rate) * weight
        self._jobs, self._at = jobs, now

    def claimed(self, seconds: float) -> None:
        self.trip += (seconds - self.trip) * 0.2

    def forget(self) -> None:
        self.rate = 0.0

    @property
    def ahead(self) -> int:
        """How many jobs to have in line: what is done within a few claims' time. Long jobs: none."""
        return min(2 * MAX_CLAIM, int(self.rate * max(HORIZON, 3 * self.trip)))


class Fetcher(Room):
    """Keeps the slots busy, and nothing more."""

    name = "fetcher"

    def __init__(
        self, hands: Hands, executor: Callable[[], Executor], settler: Settler, governor: Callable[[], Governor]
    ) -> None:
        super().__init__()
        self._hands = hands
        self._governor = governor
        self._reserves = [flow.parse_reserve(each) for each in hands.settings.reserve]
        self._executor = executor
        self._settler = settler
        self._pace = Pace()
        self._backoff = Backoff()
        self._complaint = Complaint("claiming")
        self._deaf = Complaint("listening for new jobs")
        self._deafness = Backoff()
        self._resting = False
        self._waiter: asyncio.Task[bool] | None = None
        self._leaving: set[asyncio.Task[bool]] = set()
        self._handed_back = 0
        self.nudge = Bell()
        """Rung when there may be something to claim, or no reason to sleep."""
        self._quiet = False
        self.claiming = False
        self.idle = asyncio.Event()
        """There was nothing to claim and nothing runs."""

    def freed(self) -> None:
        """There may be room again."""
        self.bell.ring()
        self._note_idle()

    def hush(self) -> None:
        """Claim nothing more."""
        self._quiet = True
        self.bell.ring()
        self.nudge.ring()

    def is_quiet(self) -> bool:
        return self._quiet

    async def run(self) -> None:
        executor = self._executor()
        await self._governor().declared.wait()
        while True:
            if self.is_quiet():
                self._stop_listening()
                await self.bell.wait()
                continue
            room = self._room(executor)
            if room.ordinary <= 0:
                # A hint taken by who has no room for the job is kept from who has.
                self._stop_listening()
                if not room.reserved:
                    await self.bell.wait(0.5)
                    continue
            await self._heed()
            lease = await self._claim_into(room)
            if lease is not None:
                await self._start(executor, lease, room)
            elif self._backoff.failures:
                continue
            elif room.ordinary <= 0:
                # A hint would mostly be about jobs that may not have these slots.
                await self.bell.wait(GLANCE)
            elif self._waiter is None:
                await self._listen()
            else:
                await self._rest()

    async def _start(self, executor: Executor, lease: Lease, room: flow.Room) -> None:
        self.idle.clear()
        held = self._hands.take(lease)
        if self.is_quiet():
            executor.deliver(held, lease)
            executor.hand_back()
        elif lease.suspect:
            self._stop_listening()
            await self._alone(executor, held, lease)
        else:
            executor.deliver(held, lease)
            if self._waiter is None and len(lease.jobs) < room.ordinary:
                # Less than asked for: most likely the next claim finds nothing, and may as well be the last look.
                await self._listen()

    async def stop(self) -> None:
        await super().stop()
        self._stop_listening()
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _room(self, executor: Executor) -> flow.Room:
        """How many to claim now; none: until rung."""
        if self._settler.failing or len(self._hands.leases) >= MAX_LEASES + executor.size:
            return flow.Room(0)
        if executor.handed_back > self._handed_back:
            # Claimed and not started: the estimate was wrong, learn again from free slots only.
            self._handed_back = executor.handed_back
            self._pace.forget()
        self._pace.measure(self._settler.settled)
        if self._reserves:
            # Nothing is claimed ahead: what stands in line would take any slot that is free, also a reserved one.
            free = executor.size - executor.running - executor.waiting
            return flow.room(min(free, MAX_CLAIM), executor.size, self._reserves, self._hands.priorities())
        ahead = self._pace.ahead
        executor.loop.low_mark = ahead // 2
        waiting = executor.waiting
        free = executor.size - executor.running - waiting
        if free <= 0 and waiting > ahead // 2:
            return flow.Room(0)
        return flow.Room(min(MAX_CLAIM, free + ahead))

    async def _claim_into(self, room: flow.Room) -> Lease | None:
        """Reserved slots first, with what they are for; then the others."""
        if room.reserved:
            share = min(sum(band.share for band in room.reserved), MAX_CLAIM)
            lease = await self._claim(share, Order(room.reserved))
            if lease is not None or self._backoff.failures:
                return lease
        return await self._claim(room.ordinary) if room.ordinary > 0 else None

    async def _claim(self, limit: int, only: Order | None = None) -> Lease | None:
        hands = self._hands
        began = monotonic()
        self.claiming = True
        try:
            if not hands.watch.is_set:
                await hands.watch.set(hands.store)
            order = await self._governor().order(limit) if only is None else only
            lease = await hands.store.claim(
                Ask(
                    hands.id,
                    hands.queues,
                    limit,
                    hands.settings.lease,
                    new_token(),
                    bands=order.bands,
                    only_bands=only is not None,
                    weights=order.weights,
                )
            )
        except HeadraceError as error:
            self._complaint.raise_(error)
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the worker
            log.exception("the store failed in a way it should not while claiming")
            self._complaint.raise_(error)
        else:
            if faults.ARMED and lease is not None:
                faults.reach("claimed")
            self._complaint.settle()
            self._backoff.reset()
            self._pace.claimed(monotonic() - began)
            if lease is not None:
                await self._governor().look(lease)
            return lease
        finally:
            self.claiming = False
        await self.nudge.wait(self._backoff.next())
        return None

    # ── asleep ──────────────────────────────────────────────────────────────
    # No job is overlooked, whenever it comes, because this room sleeps only while it listens, and only after a claim
    # that found nothing and began when it was listening already:
    #   * what came before that claim, the claim would have found;
    #   * what came later met a listener, which rings the bell, also if the fetcher is not asleep yet: a ring is
    #     remembered, and forgotten only right before the next claim, which sees whatever it was rung for.
    # Who wakes claims at once. Listening begins again when a claim has found nothing (or less than it asked for), so a
    # busy worker does not listen at all, and a wake-up costs one claim before the job starts. Every sleep has a new
    # listener, because a store reckons from the last claim until when it need not wake (a rate, a pause that ends).

    async def _heed(self) -> None:
        """The claim that follows looks for whatever was heard up to now."""
        self.nudge.forget()
        waiter = self._waiter
        if waiter is not None and waiter.done():
            self._waiter = None
            if not waiter.cancelled() and (error := waiter.exception()) is not None:
                self._deaf.raise_(error)
                await self.nudge.wait(self._deafness.next())
            else:
                self._deaf.settle()
                self._deafness.reset()

    async def _rest(self) -> None:
        """Nothing to claim: sleep until there may be."""
        self._resting = True
        self._note_idle()
        await self.nudge.wait(self._hands.settings.poll.total_seconds() + 1.0)
        self._resting = False
        if self._waiter is not None and not self._waiter.done():
            self._stop_listening()

    async def _listen(self) -> None:
        poll = self._hands.settings.poll.total_seconds() * random.uniform(0.9, 1.0)
        waiter = asyncio.create_task(self._hands.store.wait(self._hands.queues, poll), name="headrace-wait")
        self._waiter = waiter
        waiter.add_done_callback(self._heard)
        await asyncio.sleep(0)  # it begins

    def _heard(self, waiter: asyncio.Task[bool]) -> None:
        if waiter is self._waiter:
            self.nudge.ring()

    def _stop_listening(self) -> None:
        """Nobody waits for the listener's end but `stop`: a claim must not."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.cancel()
            self._leaving.add(waiter)
            waiter.add_done_callback(self._left)

    def _left(self, waiter: asyncio.Task[bool]) -> None:
        self._leaving.discard(waiter)
        if not waiter.cancelled():
            waiter.exception()  # it failed, and nobody listens to it any more

    def _note_idle(self) -> None:
        if self._resting and not self._hands.leases:
            self.idle.set()

    async def _alone(self, executor: Executor, held: Held, lease: Lease) -> None:
        """A suspect: wait until nothing else runs here, run it, and claim nothing until it is settled."""
        until = monotonic() + COMPANY_WAIT
        while (executor.running or executor.waiting) and monotonic() < until and not self.is_quiet() and not held.lost:
            await self.bell.wait(0.1)
        if held.lost:
            return
        executor.deliver(held, lease)
        if self.is_quiet():
            executor.hand_back()
        while held.token in self._hands.leases and not held.lost:
            await self.bell.wait(0.5)
