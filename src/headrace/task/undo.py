"""Undo jobs, for sagas: what takes back the effects of a task if its job does not end well, the last effect first.

`hotel = await step(book_hotel, trip)`, then `await undo(cancel_hotel.job(hotel))`.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeVar, cast

from headrace.errors import ConfigError
from headrace.model.job import BatchId, JobId
from headrace.model.step import UNDO
from headrace.task.batch_step import BatchStep
from headrace.task.call import JobCall
from headrace.task.context import current_job
from headrace.task.handle import Handle
from headrace.task.journal import digest_of
from headrace.task.task import AsyncTask, Home
from headrace.task.task_options import TaskOptions

R = TypeVar("R")


class UndoPlace(NamedTuple):
    """Where an undo job belongs."""

    job: JobId
    """The running job."""
    queue: str
    tenant: str
    batch: BatchId
    before: tuple[BatchId, ...]
    """The undo jobs that this attempt has registered before it, by their batches."""

    @property
    def first(self) -> BatchId:
        """The batch with the job that starts all of them."""
        return self.before[0] if self.before else self.batch


async def undo(call: JobCall[R]) -> Handle[R]:
    """Have a job run if this one does not end well.

    `await undo(cancel_hotel.job(hotel.id))`: the job is enqueued now and blocked. When this job is dead or cancelled, its undo
    jobs run, the last one first, each when the one before it is done. When this job is done, they are cancelled. An attempt that runs again does not register a second one. A dead
    job that is retried starts over, without its finished steps, because their effects were taken back.
    """
    home, step = _begin(call)
    journal = step.keeper.journal
    if journal.undoing is None:
        journal.undoing = asyncio.Lock()
    with step.keeper.busy():
        async with journal.undoing:
            batch = await step.find()
            if batch is None:
                batch = await step.choose()
            # Also if an earlier attempt has chosen the batch: it may have ended before it stored the job.
            put = await home.aput_undo(call, _place(batch, journal.undos))
            journal.undos.append(batch)
    return home.handle(call, put)


def undo_sync(call: JobCall[R]) -> Handle[R]:
    """The same for sync tasks, in threads and in processes."""
    home, step = _begin(call)
    journal = step.keeper.journal
    with journal.undoing_sync:
        batch = step.find_sync()
        if batch is None:
            batch = step.choose_sync()
        put = home.put_undo(call, _place(batch, journal.undos))
        journal.undos.append(batch)
    return home.handle(call, put)


def _begin(call: JobCall[Any]) -> tuple[Home, BatchStep]:
    if not isinstance(call, JobCall) or call.task is None:
        raise ConfigError(f"undo takes task.job(…), not {call!r:.80}")
    job = call.job
    if call.links is not None or job.wait is not None:
        raise ConfigError(f"undo: a job of {job.task} follows other jobs: let it enqueue what is to run after it")
    if job.key is not None or job.unique is not None:
        raise ConfigError(
            f"undo: a job of {job.task} has a key or a unique lock, so that an earlier job may stand for it: enqueue it without one"
        )
    return call.task.home, BatchStep.begin(UNDO, digest_of((job.task, job.payload), {}))


def _place(batch: BatchId, before: list[BatchId]) -> UndoPlace:
    job = current_job()
    return UndoPlace(job.id, job.queue, job.tenant, batch, tuple(before))


async def start() -> None:
    """The task of the job that starts the undo jobs of a failed one. That it is done is all that they wait for."""


def start_task() -> AsyncTask[..., None]:
    """The task, for workers. It is never enqueued through this object."""
    return AsyncTask[..., None](cast("Home", None), start, UNDO, TaskOptions())
