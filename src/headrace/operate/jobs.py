"""Cancel, retry, delete and prune jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from headrace.client.results import not_found
from headrace.model.job import JobId
from headrace.model.records import CancelAnswer, Progress, Retention
from headrace.operate.audit import Ledger, chosen, of_retention
from headrace.operate.children import cancel_awaited
from headrace.operate.dead import dropped
from headrace.store.contract import Store

_STOPPED = frozenset({CancelAnswer.CANCELLED, CancelAnswer.ASKED})


class JobOperations:
    """Moves of jobs by id. A move that changes no job leaves no entry in the audit log, unless it is part of `many`."""

    def __init__(self, store: Store, ledger: Ledger, *, many: bool = False) -> None:
        self._store = store
        self._ledger = ledger
        self._many = many

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone.

        What a cancelled job awaited is cancelled, too. The children of a running one are cancelled by its worker.
        """
        answers = await self._store.cancel(ids, reason)
        await cancel_awaited(self._store, answers)
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

    async def prune(self, keep: Retention, progress: Progress | None = None) -> int:
        """Drop finished jobs past their retention now; answers how many."""
        gone, more = 0, True
        try:
            while more:
                pruned = await self._store.prune(keep)
                gone += pruned.jobs
                expired = await dropped.expire(self._store, keep, by=self._ledger.actor)
                gone, more = gone + expired.jobs, pruned.more or expired.more
                if progress is not None:
                    progress(gone, 0, "")
        finally:
            if gone:  # an interrupted call leaves its entry, too
                await self._ledger.note("jobs.prune", of_retention(keep), gone)
        return gone

    @asynccontextmanager
    async def many(self, what: str) -> AsyncGenerator[JobOperations]:
        """The same verbs for many pages of jobs: one entry for all of them."""
        async with self._ledger.summed(what) as ledger:
            yield JobOperations(self._store, ledger, many=True)

    async def _note(self, action: str, ids: Sequence[JobId], changed: int) -> None:
        if changed or self._many:
            await self._ledger.note(action, chosen(ids), changed)
