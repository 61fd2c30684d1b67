"""The job a task is running for: `current_job()`. What it can do is done by the worker, through `Running`."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.job import Claimed, JobId


class NoCurrentJob(HeadraceError, RuntimeError):
    """`current_job()` was called outside a task that a worker runs."""

    code = "no_current_job"


class Running(Protocol):
    """An attempt under way, as its executor knows it."""

    @property
    def job(self) -> Claimed: ...

    @property
    def cancelled(self) -> bool: ...

    @property
    def deadline_at(self) -> datetime | None: ...

    async def complete(self, result: Any, tx: object) -> None: ...

    def complete_sync(self, result: Any, tx: object) -> None: ...


_running: ContextVar[Running] = ContextVar("headrace_running")


def enter(running: Running) -> None:
    """From here on, in this context, `current_job()` is that attempt's job. For executors."""
    _running.set(running)


class JobContext:
    """The job that the calling task runs for."""

    __slots__ = ("_running",)

    def __init__(self, running: Running) -> None:
        self._running = running

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task}, attempt {self.attempt}>"

    @property
    def id(self) -> JobId:
        return self._running.job.id

    @property
    def task(self) -> str:
        return self._running.job.task

    @property
    def queue(self) -> str:
        return self._running.job.queue

    @property
    def tenant(self) -> str:
        return self._running.job.tenant

    @property
    def attempt(self) -> int:
        """Which ownership of the job this is, from 1; releases and snoozes count, too."""
        return self._running.job.attempt

    @property
    def failures(self) -> int:
        """Earlier attempts that failed."""
        return self._running.job.failures

    @property
    def enqueued_at(self) -> datetime:
        return self._running.job.enqueued_at

    @property
    def deadline(self) -> datetime | None:
        """When the attempt's timeout strikes, by this machine's clock; None: never."""
        return self._running.deadline_at

    @property
    def cancelled(self) -> bool:
        """The attempt should end now: it was cancelled, is over its time, lost its lease, or the worker stops.

        Only a task in a thread has to look: async tasks get CancelledError, process tasks SIGTERM.
        """
        return self._running.cancelled

    async def complete(self, result: Any = None, *, tx: object) -> None:
        """End the job inside the caller's own transaction: its writes and the job's end commit together, or neither.

        Raises LeaseLost when the job belongs to somebody else by now: roll back.
        """
        await self._running.complete(result, tx)

    def complete_sync(self, result: Any = None, *, tx: object) -> None:
        """The same for sync tasks, which run in threads."""
        self._running.complete_sync(result, tx)


def current_job() -> JobContext:
    """The job that the calling task runs for; NoCurrentJob outside a task."""
    running = _running.get(None)
    if running is None:
        raise NoCurrentJob("there is no current job here: current_job() works inside a task that a worker runs")
    return JobContext(running)
