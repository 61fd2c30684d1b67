"""Steps of a task in a child process: the child asks over its pipe, and the worker reads and writes the journal for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from headrace.errors import HeadraceError, LeaseLost, Unsupported
from headrace.model.gate import Gate, GateId
from headrace.model.job import Claimed
from headrace.model.step import SignalWait, Step
from headrace.task.journal import Journal, Suspended, Suspension
from headrace.worker import wire
from headrace.worker.attempt import Attempt

Ask = Callable[[wire.StepCallMessage], wire.StepAnswer]


async def keep_steps(attempt: Attempt, message: wire.StepCallMessage) -> wire.StepAnswer:
    """The worker's answer to its child."""
    keeper = attempt.steps()
    try:
        if message.wait is not None:
            answered = await keeper.answer_wait(message.wait)
            return wire.StepAnswer(answered.steps, value=answered.value)
        if message.gates:
            return wire.StepAnswer(gates=await keeper.gates(message.gates))
        if not message.steps:
            return wire.StepAnswer(await keeper.read())
        await keeper.write(message.steps)
    except HeadraceError as error:
        return wire.StepAnswer(refused=str(error))
    return wire.StepAnswer()


class ChildSteps:
    """The journal of the one attempt that a child runs: see `task.context.StepKeeper`."""

    def __init__(self, job: Claimed, ask: Ask, clock: float) -> None:
        """`clock`: seconds by which the store's clock is ahead of this machine's."""
        self._ask = ask
        self._id = job.id
        self._ahead = timedelta(seconds=clock)
        self.journal = Journal()
        self._loaded = job.attempt == 1
        self._loading = threading.Lock()
        self._lazy: list[Step] = []

    def now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    @property
    def is_loaded(self) -> bool:
        return self._loaded

    def load_sync(self) -> None:
        with self._loading:
            if not self._loaded:
                self.journal.load(self._send(wire.StepCallMessage()).steps)
                self._loaded = True

    async def load(self) -> None:
        self.load_sync()

    def add_sync(self, step: Step, *, lazy: bool) -> None:
        self._lazy.append(step)
        if not lazy:
            self._write_lazy()

    def _write_lazy(self) -> None:
        if self._lazy:
            steps, self._lazy = self._lazy, []
            self._send(wire.StepCallMessage(steps))

    async def add(self, step: Step, *, lazy: bool) -> None:
        self.add_sync(step, lazy=lazy)

    def add_in_sync(self, step: Step, tx: object) -> None:
        del step, tx
        raise Unsupported('a task with executor="process" cannot keep a step in a transaction: use async or a thread')

    async def add_in(self, step: Step, tx: object) -> None:
        self.add_in_sync(step, tx)

    @contextmanager
    def busy(self) -> Generator[None]:
        yield

    def gates_sync(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return self._send(wire.StepCallMessage(gates=list(ids))).gates

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return self.gates_sync(ids)

    def answer_sync(self, gate: GateId, step: Step) -> bytes | None:
        self._write_lazy()
        with self._loading:
            wait = SignalWait(self._id, gate, step, journal=not self._loaded)
            answer = self._send(wire.StepCallMessage(wait=wait))
            if not self._loaded:
                self.journal.load(answer.steps)
                self._loaded = True
        return answer.value

    async def answer(self, gate: GateId, step: Step) -> bytes | None:
        return self.answer_sync(gate, step)

    async def suspend(self, suspension: Suspension) -> None:
        self.suspend_sync(suspension)

    def suspend_sync(self, suspension: Suspension) -> NoReturn:
        self._write_lazy()
        raise Suspended(suspension)

    def _send(self, message: wire.StepCallMessage) -> wire.StepAnswer:
        answer = self._ask(message)
        if answer.refused:
            raise LeaseLost(answer.refused)
        return answer
