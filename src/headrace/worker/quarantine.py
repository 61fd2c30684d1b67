"""QUARANTINE: how a suspect runs, so that a crash names its cause and other jobs do not wait.

A suspect was running when a worker died. Where a supervisor watches this worker, the suspect runs in a process of its own beside
ordinary work: that process's death is the job's own crash, and the worker's death is not. A suspect that cannot run there runs
alone among the slots. Without a supervisor it always does, because a later look at the lease could not tell the two deaths apart.
"""

from __future__ import annotations

from time import monotonic

from headrace.errors import HeadraceError
from headrace.model.job import Claimed
from headrace.model.lease import Lease
from headrace.policy.retry import WORKER_LOST
from headrace.worker.executor import Executor
from headrace.worker.service import Bell
from headrace.worker.state import HeldLease, WorkerState

COMPANY_WAIT = 10.0
"""Seconds that a suspect waits until no other job runs. Then it runs beside those that are left."""
ALONE = 2.0
"""Seconds for which a suspect keeps other jobs away when its worker is supervised: while it waits, and while it runs."""
MAX_LOSSES = 3
"""Worker deaths beside other jobs after which a suspect always runs alone."""
MAX_LINE = 32
"""Suspects that wait for a process of their own."""


class Quarantine:
    """Starts suspects. The fetcher claims nothing while `start` has not returned."""

    def __init__(self, state: WorkerState, bell: Bell) -> None:
        self._state = state
        self._bell = bell

    async def start(self, executor: Executor, held: HeldLease, lease: Lease, *, quiet: bool) -> None:
        """Run the one job of a suspect lease, and return when other jobs may be claimed."""
        [job] = lease.jobs
        if quiet:
            executor.deliver(held, lease)
            executor.hand_back()
            return
        losses = await self._losses(job)
        supervised = self._state.page is not None
        if supervised and losses < MAX_LOSSES and executor.isolates(job.task):
            executor.deliver(held, lease, patient=losses > 0)
            while executor.suspects.waiting > MAX_LINE and not held.lost:
                await self._bell.wait(0.1)
            return
        self._state.quarantine = True
        try:
            await self._alone(executor, held, lease, brief=supervised and losses == 0)
        finally:
            self._state.quarantine = False

    async def _losses(self, job: Claimed) -> int:
        """Worker deaths that this job took part in as a suspect and that did not count against it."""
        if self._state.page is None:
            return 0
        try:
            [stored] = await self._state.store.get([job.id])
        except HeadraceError:
            return 1  # Unknown: assume one.
        if stored is None:
            return 0
        return sum(failure.kind == WORKER_LOST for failure in stored.history) - stored.crashes

    async def _alone(self, executor: Executor, held: HeldLease, lease: Lease, *, brief: bool) -> None:
        """Wait until nothing else runs, run the suspect, and start nothing else until it ends (`brief`: briefly)."""
        [job] = lease.jobs
        until = monotonic() + (ALONE if brief else COMPANY_WAIT)
        while (executor.running or executor.waiting) and monotonic() < until and not held.lost:
            if self._state.quiet:
                break
            await self._bell.wait(0.1)
        if held.lost:
            return
        empty = not (executor.running or executor.waiting)
        if empty or not brief:
            self._state.blame(held)
        else:
            self._state.excuse(held, job)
        executor.deliver(held, lease, alone=True)
        if self._state.quiet:
            executor.hand_back()
        if brief and not empty:
            return
        until = monotonic() + ALONE
        while held.token in self._state.leases and not held.lost:
            if brief and monotonic() >= until:
                self._state.excuse(held, job)
                return
            await self._bell.wait(0.1)
