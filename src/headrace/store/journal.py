"""The verbs of steps, which are a part of the contract: a task's finished steps go in under its lease, and come out by job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import Answered, SignalWait, Step
from headrace.store.gates import KeepsGates


class KeepsSteps(Protocol):
    """A store keeps the journal of a job as long as the job, and does not read it.

    A retry by an operator keeps the journal of a dead job, which resumes, and forgets that of a done or cancelled one,
    which starts afresh. It also forgets that of a dead job with a step of the name `UNDO`, unless a job still waits for the
    failure of the dead one: the effects of its steps were taken back.
    """

    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        """Write finished steps by position, durably. Returns the refused positions: lost, settled, or never held.

        A step whose name and number the job has already changes nothing, so a call may be repeated.
        """
        ...

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        """The journal of a job, in the order written. Empty: the job has none, or there is no such job.

        `token`: the lease under which the caller runs the job. A store whose ids do not say where jobs are need not look for it.
        """
        ...

    async def answer_wait(self, token: Token, position: int, wait: SignalWait) -> Answered | None:
        """Store the value of a signalled gate as a step of a running job, durably.

        None: the position is refused. A call that has nothing to store need not notice that.
        As with `add_steps`, a step whose name and number the job has already changes nothing, so the call may be repeated.
        """
        ...


class _Keeps(KeepsSteps, KeepsGates, Protocol):
    """A store that has both parts."""


async def answer_apart(store: _Keeps, token: Token, position: int, wait: SignalWait) -> Answered | None:
    """`answer_wait` in several calls, where gates are apart from journals."""
    [gate], steps = await asyncio.gather(store.gates([wait.gate]), store.read_steps(wait.id, token))
    value = None if gate is None else gate.value
    stored = value is not None and is_new(wait, steps)
    if value is not None and stored:
        steps = [*steps, whole_step(wait.step, value)]
        if await store.add_steps(token, [(position, steps[-1])]):
            return None
    return Answered(value, stored, steps if wait.journal else [])


def is_new(wait: SignalWait, steps: Iterable[Step]) -> bool:
    """Whether the step of a wait is to be stored beside these of the job."""
    name, number = wait.step.name, wait.step.number
    return not any(one.name == name and (wait.journal or one.number == number) for one in steps)


def whole_step(step: Step, value: bytes) -> Step:
    """The step that remembers this value of a signal."""
    return msgspec.structs.replace(step, value=(step.value or b"") + value)
