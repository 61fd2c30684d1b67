"""Steps: the journal of each job lies with the job."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import Answered, SignalWait, Step
from headrace.store.journal import is_new, whole_step
from headrace.store.memory.gates import Gating


class Journaling(Gating):
    """See the contract."""

    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        lease = self._leases.get(token)
        refused: set[int] = set()
        for position, step in steps:
            job = lease.at(position) if lease is not None else None
            if job is None:
                refused.add(position)
            else:
                job.steps.setdefault((step.name, step.number), step)
        return frozenset(refused)

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        del token
        job = self._jobs.get(id.int)
        return [] if job is None else list(job.steps.values())

    async def answer_wait(self, token: Token, position: int, wait: SignalWait) -> Answered | None:
        lease = self._leases.get(token)
        job = None if lease is None else lease.at(position)
        if job is None:
            return None
        gate = self._gates.get(wait.gate.int)
        value = None if gate is None else gate.value
        stored = value is not None and is_new(wait, job.steps.values())
        if value is not None and stored:
            job.steps[wait.step.name, wait.step.number] = whole_step(wait.step, value)
        return Answered(value, stored, list(job.steps.values()) if wait.journal else [])
