"""Calls the app's `on_failure` hooks one after the other, beside the worker's other work."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from headrace.errors import Unsupported
from headrace.model.job import Claimed, Failure, JobState
from headrace.model.outcome import Again, Finish, Settlement
from headrace.runtime.logs import own_name
from headrace.task.context import JobContext, StepKeeper
from headrace.task.hooks import FailureHook, FollowUp, label_of
from headrace.worker.service import Service, log

MAX_WAITING = 10_000
"""Failures that wait for their hooks. The worker drops later ones, because a slow hook must not fill its memory."""


class EndedAttempt:
    """An attempt that has failed, as `JobContext` reads it."""

    cancelled = False
    deadline_at: datetime | None = None

    def __init__(self, job: Claimed) -> None:
        self.job = job
        self.worker = own_name()

    async def complete(self, result: Any, tx: object) -> None:
        self.complete_sync(result, tx)

    def complete_sync(self, result: Any, tx: object) -> None:
        del result, tx
        raise _over()

    def report(self, *, progress: float | None = None, note: str | None = None, line: str | None = None) -> None:
        del progress, note, line
        raise _over()

    def secrets(self) -> Sequence[str]:
        return ()  # hooks get messages and tracebacks that are masked

    def steps(self) -> StepKeeper:
        raise _over()

    def successor(self) -> int:
        raise _over()


def _over() -> Unsupported:
    return Unsupported(
        "the attempt has ended: only its task can call steps, report progress, log lines, enqueue what follows or complete the "
        "job"
    )


class _Notice(NamedTuple):
    job: Claimed
    failure: Failure
    follows: FollowUp


class FailureHooks(Service):
    """Keeps failures in order until the hooks have got them."""

    name = "failure-hooks"

    def __init__(self, hooks: Sequence[FailureHook]) -> None:
        super().__init__()
        self._hooks = hooks
        self._line: deque[_Notice] = deque()
        self._still = asyncio.Event()
        self._still.set()
        self._dropped = 0

    def take(self, job: Claimed, settlement: Settlement, now: float) -> None:
        """Hand the hooks what follows, if the attempt failed. `now` is the store's clock."""
        failure = settlement.failure
        if isinstance(settlement, Again):
            if failure is None:
                return
            due = settlement.due
            moment = due if isinstance(due, datetime) else datetime.fromtimestamp(now, UTC) + (due or timedelta(0))
            follows = FollowUp(retry_at=moment)
        elif isinstance(settlement, Finish) and settlement.state is JobState.DEAD and failure is not None:
            follows = FollowUp(reason=settlement.note or "")
        else:
            return
        if len(self._line) >= MAX_WAITING:
            self._dropped += 1
            return
        self._line.append(_Notice(job, failure, follows))
        self._still.clear()
        self.bell.ring()

    async def run(self) -> None:
        while True:
            await self.hand_over()
            self._still.set()
            if self._dropped:
                log.warning("the on_failure hooks are too slow: %d failures were not given to them", self._dropped)
                self._dropped = 0
            await self.bell.wait()

    async def hand_over(self) -> None:
        """Call the hooks for every failure that waits."""
        while self._line:
            notice = self._line.popleft()
            for hook in self._hooks:
                await _call(hook, notice)

    async def flush(self, seconds: float) -> None:
        """Wait until the hooks have got every failure."""
        try:
            async with asyncio.timeout(seconds):
                await self._still.wait()
        except TimeoutError:
            log.warning("the on_failure hooks did not end in time: %d failures were not given to them", len(self._line))


async def _call(hook: FailureHook, notice: _Notice) -> None:
    job = JobContext(EndedAttempt(notice.job))
    try:
        if inspect.iscoroutinefunction(hook):
            await hook(job, notice.failure, notice.follows)
        else:
            result = await asyncio.to_thread(hook, job, notice.failure, notice.follows)
            if inspect.isawaitable(result):
                await result
    except (Exception, SystemExit):  # noqa: BLE001  # whatever a user's hook does, the worker goes on
        log.exception("%s failed for job %s", label_of("on_failure", hook), notice.job.id)
