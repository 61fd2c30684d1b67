"""STEP: finished steps of running tasks → store.add_steps, at once, and those of one lease together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from headrace.errors import HeadraceError, LeaseLost, OutcomeUnknown, Unavailable, Unsupported
from headrace.model.gate import Gate, GateId
from headrace.model.step import Answered, SignalWait, Step
from headrace.runtime import faults
from headrace.store.gates import Upgrading
from headrace.store.transactional import Transactional
from headrace.worker.attempt import Attempt
from headrace.worker.lost_lease import tell_lost
from headrace.worker.service import Backoff, OutageLog
from headrace.worker.state import HeldLease, WorkerState

if TYPE_CHECKING:
    from headrace.worker.journal import AttemptSteps

T = TypeVar("T")

GONE: Final = "another worker holds the job now: this step is not stored, and runs again there"


class _Unwritten(NamedTuple):
    attempt: Attempt
    steps: list[Step]
    stored: asyncio.Future[None]


class StepWriter:
    """Writes the steps of all attempts of a worker. Its coroutines run in the worker's event loop."""

    def __init__(self, state: WorkerState, *, lose: Callable[[HeldLease], None]) -> None:
        self._state = state
        self._lose = lose
        self.loop = asyncio.get_running_loop()
        self._waiting: dict[HeldLease, list[_Unwritten]] = {}
        self._calls: dict[HeldLease, asyncio.Task[None] | None] = {}
        """What writes steps of a lease just now. None: the one attempt that had a step to write."""
        self._outage = OutageLog("storing steps")
        store = state.store
        self.upgrading = store if isinstance(store, Upgrading) else None
        """The store, if workers of an earlier version may share it."""

    def keeper(self, attempt: Attempt) -> AttemptSteps:
        from headrace.worker.journal import AttemptSteps  # which needs this module

        return AttemptSteps(self, attempt)

    def now(self) -> datetime:
        """The store's clock, about."""
        return datetime.fromtimestamp(self._state.watch.about(), UTC)

    async def read(self, attempt: Attempt) -> list[Step]:
        """What earlier attempts of a job have finished. Raises Unsupported if a worker would run the job without its steps."""
        if (store := self.upgrading) is not None:
            await self._ask(attempt, lambda: store.refuse_older((attempt.job.queue,)))
        if attempt.job.attempt == 1:
            return []
        return await self._ask(attempt, lambda: self._state.store.read_steps(attempt.job.id, attempt.held.token))

    async def gates(self, attempt: Attempt, ids: Sequence[GateId]) -> list[Gate | None]:
        """The present state of gates that the task of an attempt waits for."""
        return await self._ask(attempt, lambda: self._state.store.gates(ids))

    async def answer_wait(self, attempt: Attempt, wait: SignalWait) -> Answered:
        """The signal for which a task waits, which is a step from then on. Raises LeaseLost, and Unsupported as `read` does."""
        if (store := self.upgrading) is not None:
            await self._ask(attempt, lambda: store.refuse_older((attempt.job.queue,)))
        backoff = Backoff()
        while True:
            held, token = attempt.held, attempt.held.token
            look = partial(self._state.store.answer_wait, token, attempt.position, wait)
            answered = await self._ask(attempt, look)
            if answered is not None:
                if faults.ARMED and answered.stored:
                    faults.reach("stepped")
                return answered
            if held.lost or not (attempt.held is not held or token != held.token or self._state.reaping):
                break
            # Its task completes the job, which has a lease of its own now, or the janitor renews the lease under a fresh token.
            await asyncio.sleep(backoff.next())
        self._refused(held)
        raise LeaseLost(GONE)

    async def _ask(self, attempt: Attempt, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Look at the store, and again while it is away."""
        backoff = Backoff()
        while True:
            try:
                answer = await look()
            except (Unavailable, OutcomeUnknown) as error:
                await self._wait_for_store(error, [attempt], backoff)
            else:
                self._outage.settle()
                return answer

    async def add(self, attempt: Attempt, steps: list[Step], *, alone: bool = False) -> None:
        """Store these steps. Raises LeaseLost, or the error of a store that refuses them.

        `alone`: no other step of the attempt is running. In a lease of one job nothing can go with these steps then, so the caller
        writes them itself.
        """
        entry = _Unwritten(attempt, steps, self.loop.create_future())
        held = attempt.held
        if not alone or held.open > 1 or held in self._calls:
            self._begin(entry)
            await entry.stored
            return
        self._calls[held] = None
        try:
            await self._write_some(held, [entry])
        except asyncio.CancelledError:
            # What the step did is done, so it is written nevertheless.
            entry.stored.cancel()
            self._waiting.setdefault(held, []).append(entry)
            raise
        finally:
            del self._calls[held]
            if held in self._waiting:
                self._write_soon(held)
        entry.stored.result()

    def _begin(self, entry: _Unwritten) -> None:
        held = entry.attempt.held
        self._waiting.setdefault(held, []).append(entry)
        if held not in self._calls:
            self._write_soon(held)

    def _write_soon(self, held: HeldLease) -> None:
        # A task of its own, because a caller may be cancelled while other attempts wait for the same call.
        self._calls[held] = asyncio.create_task(self._write_all(held))

    async def _write_all(self, held: HeldLease) -> None:
        while waiting := self._waiting.pop(held, None):
            entries = [entry for entry in waiting if entry.attempt.held is held]
            for entry in waiting:
                if entry.attempt.held is not held:
                    self._begin(entry)  # Its task completes the job, which has a lease of its own now.
            if entries:
                await self._write_some(held, entries)
        # At once, not in a callback: a task that has its answer may add the next step before callbacks run.
        del self._calls[held]

    async def _write_some(self, held: HeldLease, entries: list[_Unwritten]) -> None:
        try:
            refused = await self._write(held, entries)
        except Exception as error:  # noqa: BLE001  # each task gets it, whatever the store has raised
            for entry in entries:
                if not entry.stored.done():
                    entry.stored.set_exception(error)
            return
        for entry in entries:
            if entry.stored.done():
                continue  # Its task was cancelled.
            if entry.attempt.position in refused:
                entry.stored.set_exception(LeaseLost(GONE))
            else:
                entry.stored.set_result(None)
        if refused:
            self._refused(held)

    def _refused(self, held: HeldLease) -> None:
        if not held.lost and not held.ending:
            tell_lost(self._state, held)
            self._lose(held)

    async def _write(self, held: HeldLease, entries: list[_Unwritten]) -> frozenset[int]:
        """Repeated until the store answers, or no task waits any more: a step that is stored twice is stored once."""
        backoff = Backoff()
        while True:
            token = held.token
            steps = [(entry.attempt.position, step) for entry in entries for step in entry.steps]
            try:
                refused = await self._state.store.add_steps(token, steps)
            except (Unavailable, OutcomeUnknown) as error:
                await self._wait_for_store(error, [entry.attempt for entry in entries], backoff)
                continue
            self._outage.settle()
            if faults.ARMED:
                faults.reach("stepped")
            if refused and not held.lost and (token != held.token or self._state.reaping):
                # The janitor has renewed the lease under a fresh token, or may do so just now.
                await asyncio.sleep(backoff.next())
                continue
            return refused

    def transactional(self) -> Transactional:
        store = self._state.store
        if not isinstance(store, Transactional):
            raise Unsupported("this store cannot keep a step inside a transaction: use SQLite or PostgreSQL")
        return store

    async def own_lease(self, attempt: Attempt) -> None:
        """A lease for this attempt alone, so that the user's transaction locks nothing else."""
        if len(attempt.held.attempts) > 1:
            await self._state.completer.detach(attempt)

    async def _wait_for_store(self, error: HeadraceError, attempts: list[Attempt], backoff: Backoff) -> None:
        self._outage.raise_(error)
        if all(attempt.reason or attempt.slots is None or attempt.held.lost for attempt in attempts):
            raise error
        await asyncio.sleep(backoff.next())
