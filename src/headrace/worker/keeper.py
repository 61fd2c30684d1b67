"""KEEP: the heartbeat renews leases. The store answers which leases are lost, which jobs to stop, and an operator's order."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from time import monotonic

from headrace.errors import HeadraceError, StoreDamaged, Unavailable
from headrace.model.lease import CLOSED, Presence, Pulse
from headrace.runtime.memory import resident
from headrace.worker.executor import Executor
from headrace.worker.lost_lease import tell_lost
from headrace.worker.service import Backoff, OutageLog, Service, log
from headrace.worker.state import WorkerState

PATIENCE = 0.25
"""How long a heartbeat may take, as a fraction of the lease. Four tries fit into one lease."""
SLOW = 1.0
"""Seconds. The watch is not set by the answer to a heartbeat that took longer."""
NEWS = 1.0
"""Seconds after which the worker reports why it claims nothing, even if its next heartbeat is due later."""


class Keeper(Service):
    """Tells the store that this worker lives, and renews its leases."""

    name = "keeper"

    def __init__(
        self,
        state: WorkerState,
        executor: Callable[[], Executor],
        failing: Callable[[], bool],
        *,
        upkeep_group: str | None = None,
        upkeep: Callable[[], None] = lambda: None,
        orders: Callable[[bytes], None] = lambda _: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._state = state
        self._executor = executor
        self._failing = failing
        self._upkeep_group = upkeep_group
        self._begin_upkeep = upkeep
        self._obey = orders
        self._hear_ready = ready
        self._reported: tuple[str, ...] = ()
        self._outage = OutageLog("the heartbeat")
        self._started_at = datetime.now(UTC)
        self._version = version("headrace")

    async def run(self) -> None:
        seconds = self._state.settings.heartbeat.total_seconds()
        backoff = Backoff()
        while True:
            self._state.reachable = await self.beat()
            if self._state.reachable:
                backoff.reset()
                await self._pause(seconds * random.uniform(0.9, 1.0))
            else:
                await self.bell.wait(min(backoff.next(), seconds / 3))

    async def _pause(self, seconds: float) -> None:
        """Sleep until the next heartbeat, or less when there is news for `explain`."""
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            if await self.bell.wait(min(left, NEWS)) or self._hindered() != self._reported:
                return

    def _hindered(self) -> tuple[str, ...]:
        state, executor = self._state, self._executor()
        reasons = {
            "quiet": state.quiet,
            "settling": self._failing(),
            "quarantine": state.quarantine,
            "reserved": state.reserved,
            "stuck": executor.loop.stuck > 0,
        }
        closed = state.open_now.closed() if state.watch.is_set else frozenset[str]()
        return (
            *(name for name, holds in reasons.items() if holds),
            *executor.full_kinds,
            *(f"{CLOSED}{queue}" for queue in state.queues if queue in closed),
        )

    async def beat(self) -> bool:
        """One heartbeat; False: the store did not answer."""
        state = self._state
        tokens = list(state.leases)
        patience = state.settings.lease.total_seconds() * PATIENCE
        try:
            # The worker gives up a half-open connection while there is time for another try.
            async with asyncio.timeout(patience):
                asked = monotonic()
                beat = state.store.heartbeat(tokens, state.settings.lease, self.presence())
                pulse = await state.calls.timed("heartbeat", beat)
        except TimeoutError:
            self._outage.raise_(Unavailable(f"no answer within {patience:g} s"))
            return False
        except StoreDamaged as error:
            if state.damage is None:
                log.critical("the store can accept nothing from this worker any more: %s", error)
            state.damage = error
            state.damaged.set()
            return False
        except HeadraceError as error:
            self._outage.raise_(error)
            return False
        except Exception as error:  # noqa: BLE001  # a store's bug must not end the worker
            log.exception("the store raised an unexpected error at a heartbeat")
            self._outage.raise_(error)
            return False
        self._outage.settle()
        self._hear(pulse)
        # If the watch is not set here, it goes on by the monotonic clock until the next heartbeat.
        if pulse.now is None:
            with suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(patience):
                    await state.watch.set(state.store)
        elif monotonic() - asked < SLOW:
            # A slower answer would set the watch ahead by the time that it took.
            state.watch.set_to(pulse.now, asked)
        return True

    def presence(self) -> Presence:
        state, executor = self._state, self._executor()
        self._reported = self._hindered()
        return Presence(
            id=state.id,
            name=state.name,
            queues=state.queues,
            slots=executor.size,
            running=min(executor.running, executor.size),
            version=self._version,
            started_at=self._started_at,
            tasks=tuple(sorted(state.tasks)),
            hindered=self._reported,
            memory=sum(map(resident, (os.getpid(), *executor.children))) or None,
            upkeep=self._upkeep_group,
        )

    def _hear(self, pulse: Pulse) -> None:
        executor = self._executor()
        begins = pulse.upkeep and not self._state.upkeep
        self._state.upkeep = pulse.upkeep
        self._state.ready_known = pulse.ready is not None
        if begins:
            self._begin_upkeep()
        for token in pulse.lost:
            held = self._state.leases.get(token)
            # The store may have ended a lease whose settlement is under way: the answer to that call decides. A lease
            # that is being renewed has a fresh token: the next heartbeat decides.
            if held is None or held.ending or self._state.reaping:
                continue
            tell_lost(self._state, held)
            executor.lose(held)
        for stop in pulse.stops:
            if (held := self._state.leases.get(stop.token)) is not None:
                executor.stop_job(held, stop.position)
        self._obey(pulse.order)
        if pulse.ready:
            self._hear_ready()
