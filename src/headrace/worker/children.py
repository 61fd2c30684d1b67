"""CHILDREN: cancels what jobs awaited that this worker has settled as dead or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.model.job import Claimed, JobId, JobState
from headrace.model.outcome import Finish, Settlement
from headrace.operate.children import cancel_children
from headrace.store.contract import Store
from headrace.worker.attempt import Attempt
from headrace.worker.service import log

Parent = tuple[JobId, JobState]


def parent_of(attempt: Attempt, follows: Settlement) -> Parent | None:
    """The job and its end, if it may have left children. Most jobs that die were never suspended, and cost no look."""
    if attempt.journal is None and not _was_suspended(attempt.job):
        return None
    return ended_parent(attempt.job, follows)


def ended_parent(job: Claimed, follows: Settlement) -> Parent | None:
    """The job and its end, if it has ended and is not done."""
    return (job.id, follows.state) if isinstance(follows, Finish) and follows.state is not JobState.DONE else None


def _was_suspended(job: Claimed) -> bool:
    """Whether an earlier attempt may have ended without a failure."""
    return job.attempt > job.failures + job.crashes + 1


class ChildCanceller:
    """Cancels children beside the settlements that follow. If it fails, the children run to their end, and nothing waits for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, parents: Sequence[Parent]) -> None:
        """The settlements of these jobs are stored."""
        if parents:
            task = asyncio.create_task(self._cancel(parents), name="headrace-children")
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _cancel(self, parents: Sequence[Parent]) -> None:
        try:
            await cancel_children(self._store, parents)
        except HeadraceError as error:
            log.warning("the children of %d jobs that have ended are not cancelled: %s", len(parents), error)
