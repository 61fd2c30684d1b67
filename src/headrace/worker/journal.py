"""The journal of a running attempt: its finished steps, and what it waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

from headrace.errors import LeaseLost, Unsupported
from headrace.model.gate import Gate, GateId
from headrace.model.step import Answered, SignalWait, Step
from headrace.runtime import event_loop
from headrace.task.journal import Journal, Suspended, Suspension, joined
from headrace.worker.attempt import SUSPEND, Attempt
from headrace.worker.step_writer import GONE, StepWriter

T = TypeVar("T")

TURNS: Final = 8
"""Of the event loop, from the last end of a step to the suspension. A value passes through a few futures to the code that uses it."""


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
