"""STEP: finished steps of running tasks → store.add_steps, at once, and those of one lease together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from headrace.errors import HeadraceError, LeaseLost, OutcomeUnknown, Unavailable, Unsupported
from headrace.model.gate import Gate, GateId
from headrace.model.step import Answered, SignalWait, Step
from headrace.runtime import event_loop, faults
from headrace.store.contract import Transactional
from headrace.store.gates import Upgrading
from headrace.task.journal import Journal, Suspended, Suspension, joined
from headrace.worker.attempt import SUSPEND, Attempt
from headrace.worker.lost_lease import tell_lost
from headrace.worker.service import Backoff, OutageLog
from headrace.worker.state import HeldLease, WorkerState

T = TypeVar("T")

TURNS: Final = 8
"""Of the event loop, from the last end of a step to the suspension. A value passes through a few futures to the code that uses it."""
GONE = "another worker holds the job now: this step is not stored, and runs again there"


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


def _check_accepted(refused: frozenset[int]) -> None:
    if refused:
        raise LeaseLost(GONE)


class AttemptSteps:
    """The journal of one attempt: see `task.context.StepKeeper`."""

    def __init__(self, writer: StepWriter, attempt: Attempt) -> None:
        self._writer = writer
        self._attempt = attempt
        self.journal = Journal()
        self._loaded = attempt.job.attempt == 1 and writer.upgrading is None
        """Nothing ran before the first attempt."""
        self._loading: asyncio.Lock | None = None
        self._loading_sync = threading.Lock()
        self.added = 0
        """Steps that this attempt has stored. One in a user's transaction does not count, because it may be rolled back."""
        self._lazy: list[Step] = []
        self._busy = 0
        self._waits: dict[asyncio.Future[None], Suspension] = {}
        """What coroutines of the task wait for, each at a future that is never done."""
        self._turn: asyncio.Handle | None = None
        """The next look at whether the attempt is to be suspended."""

    @property
    def suspension(self) -> Suspension:
        """What the suspended job waits for."""
        return joined(list(self._waits.values()))

    def now(self) -> datetime:
        return self._writer.now()

    @property
    def is_loaded(self) -> bool:
        return self._loaded

    async def load(self) -> None:
        if self._loaded:
            return
        if self._loading is None:
            self._loading = asyncio.Lock()
        async with self._loading:
            if not self._loaded:
                await self._in_loop(self._load())

    def load_sync(self) -> None:
        with self._loading_sync:
            if not self._loaded:
                self._from_thread(self._load())

    async def _load(self) -> None:
        """In the worker's event loop, so that of two calls only the first takes over what it has read."""
        steps = await self._writer.read(self._attempt)
        if not self._loaded:
            self.journal.load(steps)
            self._loaded = True

    async def read(self) -> list[Step]:
        """For the child process that runs the attempt."""
        return await self._writer.read(self._attempt)

    async def write(self, steps: list[Step]) -> None:
        """For the child process that runs the attempt."""
        await self._writer.add(self._attempt, steps)
        self.added += len(steps)

    async def add(self, step: Step, *, lazy: bool) -> None:
        if (steps := self._take(step, lazy=lazy)) is not None:
            await self._in_loop(self._writer.add(self._attempt, steps, alone=self._busy <= 1))
            self.added += len(steps)

    def add_sync(self, step: Step, *, lazy: bool) -> None:
        if (steps := self._take(step, lazy=lazy)) is not None:
            self._from_thread(self._writer.add(self._attempt, steps))
            self.added += len(steps)

    async def add_in(self, step: Step, tx: object) -> None:
        store = self._writer.transactional()
        if not store.one_writer:
            await self._in_loop(self._writer.own_lease(self._attempt))
        held, position = self._attempt.held, self._attempt.position
        _check_accepted(await store.aadd_steps_in(tx, held.token, [(position, one) for one in self._all(step)]))

    def add_in_sync(self, step: Step, tx: object) -> None:
        store = self._writer.transactional()
        if not store.one_writer:
            self._from_thread(self._writer.own_lease(self._attempt))
        held, position = self._attempt.held, self._attempt.position
        _check_accepted(store.add_steps_in(tx, held.token, [(position, one) for one in self._all(step)]))

    def _take(self, step: Step, *, lazy: bool) -> list[Step] | None:
        """The steps to write now. One that ends while the attempt is about to be suspended has no next one to go with."""
        if lazy and not self._waits:
            self._lazy.append(step)
            return None
        return self._all(step)

    def _all(self, step: Step) -> list[Step]:
        """A step, behind the lazy ones before it."""
        steps, self._lazy = [*self._lazy, step], []
        return steps

    def _left_over(self) -> list[Step] | None:
        """The lazy steps, to be written before a wait: its answer, or the next attempt, builds on what they say."""
        steps, self._lazy = self._lazy, []
        return steps or None

    @contextmanager
    def busy(self) -> Generator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._look_soon()

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return await self._in_loop(self._writer.gates(self._attempt, ids))

    def gates_sync(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return self._from_thread(self._writer.gates(self._attempt, ids))

    async def answer(self, gate: GateId, step: Step) -> bytes | None:
        return await self._in_loop(self._answer(gate, step))

    def answer_sync(self, gate: GateId, step: Step) -> bytes | None:
        return self._from_thread(self._answer(gate, step))

    async def _answer(self, gate: GateId, step: Step) -> bytes | None:
        if (steps := self._left_over()) is not None:
            await self.write(steps)
        wait = SignalWait(self._attempt.job.id, gate, step, journal=not self._loaded)
        answered = await self.answer_wait(wait)
        if not self._loaded:
            self.journal.load(answered.steps)
            self._loaded = True
        return answered.value

    async def answer_wait(self, wait: SignalWait) -> Answered:
        """For the child process that runs the attempt."""
        answered = await self._writer.answer_wait(self._attempt, wait)
        self.added += answered.stored
        return answered

    async def suspend(self, suspension: Suspension) -> None:
        with self.busy():
            if (steps := self._left_over()) is not None:
                await self._in_loop(self._writer.add(self._attempt, steps))
                self.added += len(steps)
        if not self._attempt.known.is_async:
            raise Suspended(suspension)  # The task has an event loop of its own, which the worker cannot reach.
        never = asyncio.get_running_loop().create_future()
        self._waits[never] = suspension
        self._look_soon()
        try:
            await never
        except asyncio.CancelledError:
            if not self._attempt.reason:
                del self._waits[never]  # The task has cancelled this wait and goes on without it.
            raise

    def suspend_sync(self, suspension: Suspension) -> NoReturn:
        if (steps := self._left_over()) is not None:
            self._from_thread(self._writer.add(self._attempt, steps))
            self.added += len(steps)
        raise Suspended(suspension)

    def _look_soon(self, turns: int = TURNS) -> None:
        """Other coroutines of the task may start a step, or cancel the waits that lost a race, before the loop has turned so often."""
        if self._turn is not None:
            self._turn.cancel()
        if not self._waits or self._busy:
            return
        if turns:
            self._turn = asyncio.get_running_loop().call_soon(self._look_soon, turns - 1)
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        attempt = self._attempt
        if not attempt.reason and attempt.slots is not None:
            attempt.reason = SUSPEND
            attempt.slots.interrupt(attempt)
            for never in self._waits:
                never.cancel()  # A task of its own that waits is not cancelled with the one that began it.

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await in the worker's event loop, which may be another than the task's in tests."""
        if asyncio.get_running_loop() is self._writer.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._writer.loop))

    def _from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        if event_loop.runs_here():
            work.close()
            raise Unsupported(
                "the sync forms step_sync, sleep_sync and wait_sync would block the event loop: use `await step(…)`, "
                "`await sleep(…)` and `await call` in async tasks"
            )
        return asyncio.run_coroutine_threadsafe(work, self._writer.loop).result()
