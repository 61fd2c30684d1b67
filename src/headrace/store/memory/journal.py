"""Steps: the journal of each job lies with the job."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import Step
from headrace.store.memory.base import Base


class Journaling(Base):
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

    async def read_steps(self, id: JobId) -> list[Step]:
        job = self._jobs.get(id.int)
        return [] if job is None else list(job.steps.values())
