"""The causes of dead jobs, remembered: a dead job has died once, and its traceback need not be read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from headrace.model.job import Job, JobState
from headrace.policy import fingerprint
from headrace.policy.fingerprint import Fingerprint
from headrace.store.contract import Store

MOST: Final = 100_000
"""Causes that are remembered. Each takes about 200 bytes."""
_AT_ONCE: Final = 250
"""Jobs that one call reads with their tracebacks."""

_Death = tuple[UUID, int]
"""A job and the number of its attempt: a job that was replayed may die again, of something else."""


class Causes:
    """Reads the failures of dead jobs that it has not met before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[_Death, Fingerprint] = {}
        self._shared: dict[Fingerprint, Fingerprint] = {}
        """One object for each cause, because thousands of jobs die of the same one."""

    async def of(self, dead: Sequence[Job]) -> list[tuple[Job, Fingerprint]]:
        """These dead jobs, as `find` lists them, with the cause of each. A job that is not dead any more is left out."""
        new = [job.id for job in dead if (job.id, job.attempt) not in self._known]
        for start in range(0, len(new), _AT_ONCE):
            for job in await self._store.get(new[start : start + _AT_ONCE]):
                if job is not None and job.state is JobState.DEAD:
                    self._remember((job.id, job.attempt), fingerprint.of_job(job))
        known = self._known
        return [(job, known[job.id, job.attempt]) for job in dead if (job.id, job.attempt) in known]

    def _remember(self, death: _Death, cause: Fingerprint) -> None:
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        self._known[death] = self._shared.setdefault(cause, cause)
        if len(self._shared) > MOST:
            self._shared.clear()
