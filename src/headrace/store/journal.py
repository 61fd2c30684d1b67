"""The verbs of steps, which are a part of the contract: a task's finished steps go in under its lease, and come out by job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import Step


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

    async def read_steps(self, id: JobId) -> list[Step]:
        """The journal of a job, in the order written. Empty: the job has none, or there is no such job."""
        ...
