"""CLAIM: free slots → leases. The fetcher prefetches by the worker's pace, and sleeps in `wait` without jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from typing import cast

from headrace.errors import HeadraceError, OutcomeUnknown
from headrace.model.lease import MAX_LEASE, Ask, Lease, Token, new_token
from headrace.policy import reserve
from headrace.policy.flow import ClaimOrder
from headrace.runtime import faults
from headrace.store.contract import Prompt
from headrace.worker.executor import Executor
from headrace.worker.limit_feedback import LimitFeedback
from headrace.worker.pace import Pace
from headrace.worker.polls import poll_seconds
from headrace.worker.quarantine import Quarantine
from headrace.worker.service import Backoff, Bell, OutageLog, Service, log
from headrace.worker.settler import Settler
from headrace.worker.slots import LoopSlots
from headrace.worker.state import WorkerState

PLAIN = ClaimOrder()
QUICK = 4
"""Turns of the event loop within which a job that never waits has ended."""
QUICK_SYNC = 0.002
"""Seconds in which the thread of a sync job that never waits has ended it and the event loop knows."""
BRIEF = 0.003
"""Seconds in which an async job that awaits a few answers of the store has ended."""
RARE = 0.03
"""Seconds between two claims of jobs that come so rarely that the next one hardly comes while a brief one runs."""
MAX_LEASES = 64
"""Batches with unsettled results. Beyond this number the worker claims nothing."""
GLANCE = 0.05
"""Seconds between two claims for reserved slots, while all other slots are taken."""


class Fetcher(Service):
    """Keeps the slots busy."""

    name = "fetcher"

    def __init__(
        self,
        state: WorkerState,
        executor: Callable[[], Executor],
        settler: Settler,
        feedback: Callable[[], LimitFeedback],
    ) -> None:
        super().__init__()
        self._state = state
        self._feedback = feedback
        self._reserves = [reserve.parse_reserve(text) for text in state.settings.reserve]
        self._executor = executor
        self._settler = settler
        self._pace = Pace()
        self._quarantine = Quarantine(state, self.bell)
        self._backoff = Backoff()
        self._outage = OutageLog("claiming")
        self._deaf = OutageLog("listening for new jobs")
        self._deafness = Backoff()
        self._resting = False
        self._looked = False
        """The last listener has claimed when its time was up."""
        self._waiter: asyncio.Task[Lease | bool] | None = None
        self._leaving: set[asyncio.Task[Lease | bool]] = set()
        # Looked up by name, so that it also works for a wrapped store. Reserved slots ask in an order of their own.
        self._prompt = (
            cast("Prompt", state.store) if hasattr(state.store, "wait_to_claim") and not self._reserves else None
        )
        self._asked: Ask | None = None
        """The claim that the listener makes when a job arrives."""
        self._begun: Lease | None = None
        """The listener has started the jobs of this lease."""
        self._unsure: Token | None = None
        """The token of a claim whose answer was lost. The next claim repeats it, so that no lease is left unused."""
        self._handed_back = 0
        self.nudge = Bell()
        """Rung when there may be a job to claim."""
        self.claiming = False
        self._claimed_at = 0.0
        self.idle = asyncio.Event()
        """Set when the last claim found nothing and nothing runs."""

    def freed(self) -> None:
        """There may be room again."""
        self.bell.ring()
        if self._executor().scope.narrowed:
            # The fetcher sleeps without the queues that it left out.
            self.nudge.ring()
        self._note_idle()

    def hush(self) -> None:
        """Claim nothing more."""
        self._state.quiet = True
        self.bell.ring()
        self.nudge.ring()

    def is_quiet(self) -> bool:
        return self._state.quiet

    def looks(self) -> bool:
        """Whether the worker sleeps, and so looks for jobs of all its queues at each poll."""
        return self._resting and not self._executor().scope.narrowed

    async def run(self) -> None:
        executor = self._executor()
        await self._feedback().declared.wait()
        while True:
            if (brought := self._brought()) is not None:
                if self._begun is brought[0]:
                    self._begun = None
                    await self._listen_after(executor, *brought)
                else:
                    await self._claimed(brought[0])
                    await self._start(executor, *brought)
                continue
            if self.is_quiet():
                self._stop_listening()
                await self.bell.wait()
                continue
            room = self._room(executor)
            if room.ordinary <= 0:
                # A worker without a free slot must not consume a hint that a worker with a free slot could use.
                self._stop_listening()
                if not room.reserved:
                    await self.bell.wait(0.5)
                    continue
            if await self._heed() and (self._looked or not self._may_bring()):
                # The poll is over. The next listener comes before the claim, so that one claim is enough; and none is
                # needed after a listener that has claimed itself.
                await self._listen()
                continue
            lease = await self._claim_into(room)
            if lease is not None:
                await self._start(executor, lease, room.ordinary)
            elif self._backoff.failures:
                continue
            elif room.ordinary <= 0:
                # Most hints are about jobs that may not use the reserved slots.
                await self.bell.wait(GLANCE)
            elif self._waiter is None:
                await self._listen()
            else:
                await self._rest()

    async def _start(self, executor: Executor, lease: Lease, asked: int) -> None:
        self.idle.clear()
        held = self._state.take(lease)
        if self.is_quiet():
            executor.deliver(held, lease)
            executor.hand_back()
        elif lease.suspect:
            self._stop_listening()
            await self._quarantine.start(executor, held, lease, quiet=self.is_quiet())
        else:
            executor.deliver(held, lease)
            await self._listen_after(executor, lease, asked)

    async def _listen_after(self, executor: Executor, lease: Lease, asked: int) -> None:
        """Listen before the next claim if that one most likely finds nothing: the last one found less than it asked for."""
        if self._waiter is None and len(lease.jobs) < asked and not lease.cut and not self.is_quiet():
            if self._prompt is not None and len(lease.jobs) <= executor.size:
                await self._let_run(executor, len(lease.jobs))
            await self._listen()

    async def stop(self) -> None:
        await super().stop()
        if (brought := self._brought()) is not None:
            lease, _ = brought
            if self._begun is not lease:
                self._executor().deliver(self._state.take(lease), lease)
            self._executor().hand_back()
        self._stop_listening()
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _room(self, executor: Executor) -> reserve.FreeSlots:
        """How many jobs to claim now. None: sleep until the bell rings."""
        if self._settler.failing or len(self._state.leases) >= MAX_LEASES + executor.size:
            return reserve.FreeSlots(0)
        if executor.handed_back > self._handed_back:
            # Claimed jobs have not started, so the estimate was wrong. Start again from free slots only.
            self._handed_back = executor.handed_back
            self._pace.forget()
        self._pace.measure(self._settler.settled)
        if self._reserves:
            # Nothing is claimed ahead, because a job in line would take any free slot, also a reserved one.
            free = executor.size - executor.running - executor.waiting
            room = reserve.room(min(free, MAX_LEASE), executor.size, self._reserves, self._state.priorities())
            self._state.reserved = room.ordinary <= 0 and bool(room.reserved)
            return room
        ahead = self._pace.ahead
        executor.loop.low_mark = ahead // 2
        waiting = executor.waiting
        free = executor.size - executor.running - waiting
        if free <= 0 and waiting > ahead // 2:
            return reserve.FreeSlots(0)
        return reserve.FreeSlots(executor.claimable(min(MAX_LEASE, free + ahead), ahead))

    async def _claim_into(self, room: reserve.FreeSlots) -> Lease | None:
        """Claim for the reserved slots first, then for the others."""
        if room.reserved:
            share = min(sum(band.share for band in room.reserved), MAX_LEASE)
            weights = (await self._feedback().order(share)).weights
            lease = await self._claim(share, ClaimOrder(room.reserved, weights))
            if lease is not None or self._backoff.failures:
                return lease
        return await self._claim(room.ordinary) if room.ordinary > 0 else None

    async def _claim(self, limit: int, only: ClaimOrder | None = None) -> Lease | None:
        state = self._state
        began = monotonic()
        token = self._unsure or new_token()
        self.claiming = True
        try:
            if not state.watch.is_set:
                await state.watch.set(state.store)
            order = await self._feedback().order(limit) if only is None else only
            self._plain = order == PLAIN
            ask = self._ask(limit, order, token, only_bands=only is not None)
            lease = await state.calls.timed("claim", state.store.claim(ask))
        except OutcomeUnknown as error:
            self._unsure = token
            self._outage.raise_(error)
        except HeadraceError as error:
            self._outage.raise_(error)
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the worker
            log.exception("the store raised an unexpected error during a claim")
            self._outage.raise_(error)
        else:
            self._unsure = None
            self._pace.claimed(monotonic() - began)
            self._outage.settle()
            self._backoff.reset()
            if lease is not None:
                await self._claimed(lease)
            return lease
        finally:
            self.claiming = False
        await self.nudge.wait(self._backoff.next())
        return None

    def _ask(self, limit: int, order: ClaimOrder, token: Token, *, only_bands: bool = False) -> Ask:
        state, scope = self._state, self._executor().scope
        return Ask(
            state.id,
            scope.queues,
            limit,
            state.settings.lease,
            token,
            bands=scope.bands(order.bands),
            only_bands=only_bands,
            weights=order.weights,
        )

    async def _claimed(self, lease: Lease) -> None:
        if faults.ARMED:
            faults.reach("claimed")
        self.claiming = True
        await self._feedback().look(lease)
        self.claiming = False

    # ── asleep ──────────────────────────────────────────────────────────────
    # The fetcher misses no job, because it sleeps only while a listener is active, and only after a claim that began
    # while the listener was active and found nothing:
    #   * a job that arrived before that claim would have been found by it;
    #   * a job that arrives later meets the listener, which rings the bell. The bell remembers a ring while the fetcher
    #     is still awake, and forgets it only right before the next claim, which finds the job.
    # After a wake-up the fetcher claims at once. It listens again when a claim has found less than it asked for, so a
    # busy worker does not listen at all, and a wake-up costs one claim before the job starts. Every sleep has a new
    # listener, because a store computes at the last claim until when it need not wake (a rate, a pause that ends).
    # Some stores claim for a listener at the moment when they wake it, and include jobs that were there before, so the
    # last claim is not needed. Only a worker that runs nothing asks for that. A worker whose job blocks the loop would
    # keep the new lease unused. A hint that it misses costs little: other workers find the job at their next poll.

    def _may_bring(self) -> bool:
        executor = self._executor()
        free = not executor.running and not executor.waiting
        return free and self._prompt is not None and self._plain

    def _brought(self) -> tuple[Lease, int] | None:
        """The lease that the listener has claimed, and how many jobs it asked for."""
        waiter, ask = self._waiter, self._asked
        if waiter is None or ask is None or not waiter.done() or waiter.cancelled() or waiter.exception() is not None:
            return None
        lease = waiter.result()
        if isinstance(lease, bool):
            return None
        self._waiter = self._asked = None
        self._deaf.settle()
        self._deafness.reset()
        return lease, ask.limit

    async def _let_run(self, executor: Executor, count: int) -> None:
        """Let this many jobs, which were just claimed, end if they are quick. After that the listener may claim a lease."""
        loop, threads, settler = executor.loop, executor.threads, self._settler
        is_rare = monotonic() - self._claimed_at > RARE
        self._claimed_at = monotonic()
        await _quickly(loop)
        if is_rare and 0 < loop.running == executor.running <= count and settler.was_within(BRIEF):
            settler.over.forget()
            await settler.over.wait(BRIEF)
            await _quickly(loop)
        if threads.unfinished and threads.was_within(QUICK_SYNC):
            # The event loop sleeps here, so that the thread runs at once.
            self.bell.forget()
            await self.bell.wait(QUICK_SYNC)

    async def _heed(self) -> bool:
        """Forget earlier rings, because the claim that follows finds their jobs. True: the listener's time was up."""
        self.nudge.forget()
        waiter = self._waiter
        if waiter is not None and waiter.done():
            ask, self._asked = self._asked, None
            self._waiter = None
            self._looked = ask is not None
            if not waiter.cancelled() and (error := waiter.exception()) is not None:
                self._unsure = None if ask is None else ask.token
                self._deaf.raise_(error)
                await self.nudge.wait(self._deafness.next())
            else:
                self._deaf.settle()
                self._deafness.reset()
                return not waiter.cancelled() and waiter.result() is False
        return False

    async def _rest(self) -> None:
        """Sleep until there may be a job to claim."""
        self._resting = True
        self._note_idle()
        await self.nudge.wait(poll_seconds(self._state) + 1.0)
        self._resting = False
        if self._waiter is not None and not self._waiter.done():
            self._stop_listening()

    async def _listen(self) -> None:
        poll = poll_seconds(self._state) * random.uniform(0.9, 1.0)
        room = self._room(self._executor()).ordinary if self._may_bring() else 0
        if self._prompt is not None and room > 0:
            self._asked = self._ask(room, PLAIN, new_token())
        self._waiter = asyncio.create_task(self._hear(self._asked, poll), name="headrace-wait")
        if self._asked is not None:
            await self._rest()
        else:
            await asyncio.sleep(0)  # The listener starts.

    async def _hear(self, ask: Ask | None, poll: float) -> Lease | bool:
        """Wait for a hint, or with `ask` for a lease."""
        try:
            if ask is not None and self._prompt is not None:
                lease = await self._prompt.wait_to_claim(ask, poll)
                if not isinstance(lease, bool):
                    self._begin(lease)
                return lease
            return await self._state.store.wait(self._executor().scope.queues, poll)
        finally:
            # The fetcher wakes in the next turn of the loop, when this task is done. A callback of the task would come
            # one turn later.
            if asyncio.current_task() is self._waiter:
                self.nudge.ring()

    def _begin(self, lease: Lease) -> None:
        """Start plain jobs in the listener's own turn of the loop. The fetcher wakes a turn later, and sees to the others."""
        mine = asyncio.current_task() is self._waiter
        if mine and not (self.is_quiet() or lease.suspect or faults.ARMED) and self._feedback().is_fresh():
            self._begun = lease
            self.idle.clear()
            self._executor().deliver(self._state.take(lease), lease)

    def _stop_listening(self) -> None:
        """Cancel the listener. Only `stop` waits for its end, so that a claim is not delayed."""
        waiter, self._waiter, self._asked = self._waiter, None, None
        if waiter is not None:
            waiter.cancel()
            self._leaving.add(waiter)
            waiter.add_done_callback(self._left)

    def _left(self, waiter: asyncio.Task[Lease | bool]) -> None:
        self._leaving.discard(waiter)
        if not waiter.cancelled():
            waiter.exception()  # Retrieved, so that asyncio does not log it.

    def _note_idle(self) -> None:
        if self._resting and not self._state.leases:
            self.idle.set()


async def _quickly(loop: LoopSlots) -> None:
    """The turns of the event loop in which jobs that never wait end, and their slots become free."""
    for _ in range(QUICK):
        if loop.waiting or loop.running:
            await asyncio.sleep(0)
