"""Cancel, retry and delete jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from headrace.client.results import not_found
from headrace.model.job import JobId
from headrace.model.records import CancelAnswer
from headrace.operate import dropped
from headrace.operate.ledger import Ledger, chosen
from headrace.store.contract import Store

_STOPPED = frozenset({CancelAnswer.CANCELLED, CancelAnswer.ASKED})


class JobOperations:
    """Moves of jobs by id. One that changes no job leaves no entry, unless it is part of `many`."""

    def __init__(self, store: Store, ledger: Ledger, *, many: bool = False) -> None:
        self._store = store
        self._ledger = ledger
        self._many = many

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        answers = await self._store.cancel(ids, reason)
        stopped = sum(answer in _STOPPED for answer in answers.values())
        await self._note("jobs.cancel", ids, stopped)
        return answers

    async def stop(self, id: JobId, reason: str | None) -> bool:
        """Cancel one job; False: it had ended. Raises JobNotFound."""
        answer = (await self.cancel([id], reason)).get(id, CancelAnswer.UNKNOWN)
        if answer is CancelAnswer.UNKNOWN:
            raise not_found(id)
        return answer is not CancelAnswer.FINISHED

    async def retry(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        moved = await self._store.retry(ids)
        await self._note("jobs.retry", ids, len(moved))
        return moved

    async def delete(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        gone = await dropped.delete(self._store, ids, by=self._ledger.actor)
        await self._note("jobs.delete", ids, len(gone))
        return gone

    @asynccontextmanager
    async def many(self, what: str) -> AsyncGenerator[JobOperations]:
        """The same verbs for many pages of jobs: one entry for all of them."""
        async with self._ledger.summed(what) as ledger:
            yield JobOperations(self._store, ledger, many=True)

    async def _note(self, action: str, ids: Sequence[JobId], changed: int) -> None:
        if changed or self._many:
            await self._ledger.note(action, chosen(ids), changed)
