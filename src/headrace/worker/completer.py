"""COMPLETE: ends a job inside the user's own transaction, and checks afterwards whether that was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from headrace.errors import HeadraceError, LeaseLost, OutcomeUnknown, Unsupported
from headrace.model.job import Job, JobState
from headrace.model.lease import Token, new_token
from headrace.model.outcome import Outcome, Settlement, Succeeded
from headrace.policy import retry
from headrace.store.transactional import Transactional
from headrace.webhooks.deliver import batch_of
from headrace.worker import outcome_of
from headrace.worker.attempt import Attempt
from headrace.worker.service import Backoff, OutageLog, log
from headrace.worker.settler import Settler
from headrace.worker.state import HeldLease, WorkerState

GONE = "another worker holds the job now: roll back"


class Completer:
    """A completed job gets a lease of its own, so that the user's transaction locks nothing else.

    A store with one writer is the exception: the transaction locks everything there, and the job keeps its lease.
    """

    def __init__(self, state: WorkerState, settler: Settler) -> None:
        self._state = state
        self._settler = settler
        self._loop = asyncio.get_running_loop()
        self._checks: set[asyncio.Task[None]] = set()
        self._outage = OutageLog("asking whether a completed job's transaction was committed")

    async def complete(self, attempt: Attempt, result: Any, tx: object) -> None:
        store = self._transactional()
        settlement = self._settlement(attempt, result)
        self._check_open(attempt)
        if not store.one_writer:
            # (A transaction that is the one writer would keep a report waiting for its own end.)
            if attempt.held.reported:
                await self._state.reporter.flush(attempt.held)
            await self.detach(attempt)
        news = self._state.delivery_maker.news(attempt.job, settlement)
        with _completing(attempt) as held:
            if news:
                await store.aenqueue_in(tx, batch_of(news))
            _check_accepted(await store.asettle_in(tx, held.token, [(attempt.position, settlement)]))

    def complete_sync(self, attempt: Attempt, result: Any, tx: object) -> None:
        if self._on_loop():
            raise Unsupported("complete_sync() would block the event loop: use `await job.complete(…)` in async tasks")
        store = self._transactional()
        settlement = self._settlement(attempt, result)
        self._check_open(attempt)
        if not store.one_writer:
            if attempt.held.reported:
                asyncio.run_coroutine_threadsafe(self._state.reporter.flush(attempt.held), self._loop).result()
            asyncio.run_coroutine_threadsafe(self.detach(attempt), self._loop).result()
        news = self._state.delivery_maker.news(attempt.job, settlement)
        with _completing(attempt) as held:
            if news:
                store.enqueue_in(tx, batch_of(news))
            _check_accepted(store.settle_in(tx, held.token, [(attempt.position, settlement)]))

    def end(self, attempt: Attempt, outcome: Outcome) -> None:
        """Check whether the transaction of a completed job was committed. Called when its task has ended."""
        check = asyncio.create_task(self._end(attempt, outcome))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def flush(self, seconds: float) -> None:
        """Wait for the checks under way."""
        if self._checks:
            await asyncio.wait(list(self._checks), timeout=seconds)

    async def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        held = attempt.held
        if not isinstance(outcome, Succeeded):
            # The store ignores this if the transaction was committed after all.
            self._settler.take(attempt, outcome)
            return
        job = await self._look(attempt)
        if job is None or job.state is JobState.DONE:
            self._settler.leave(attempt, succeeded=True)
        elif job.state is JobState.RUNNING and job.attempt == attempt.job.attempt:
            self._settler.take(attempt, outcome_of.rolled_back(attempt))
        else:
            log.warning("lease lost: another worker took job %s over while its task completed it", job.id)
            self._state.emit("lease.lost", token=held.token, jobs=1)
            self._settler.leave(attempt, succeeded=False)

    async def _look(self, attempt: Attempt) -> Job | None:
        backoff = Backoff()
        while True:
            try:
                [job] = await self._state.store.get([attempt.job.id])
            except HeadraceError as error:
                self._outage.raise_(error)
            except Exception as error:  # noqa: BLE001  # an open lease must not stay behind a store's bug
                log.exception("the store raised an unexpected error while the worker checked a completed job")
                self._outage.raise_(error)
            else:
                self._outage.settle()
                return job
            await asyncio.sleep(backoff.next())

    def _check_open(self, attempt: Attempt) -> None:
        if attempt.slots is None or attempt.completed:
            raise Unsupported("this job was completed before, or its task has ended: complete it once, inside the task")
        if attempt.held.lost:
            raise LeaseLost(GONE)

    async def detach(self, attempt: Attempt) -> None:
        """Move the attempt into a lease of its own, so that a user's transaction locks nothing else."""
        old, position, fresh = attempt.held, attempt.position, new_token()
        old.busy += 1
        try:
            moved = await self._move(old.token, position, fresh)
        finally:
            old.busy -= 1
        if not moved:
            raise LeaseLost(GONE)
        new = HeldLease(self._state, fresh, suspect=old.suspect)
        new.limited = old.limited
        new.attempts.append(attempt)
        new.jobs.append((attempt.job.batch, attempt.job.ord, attempt.job.attempt))
        new.open = 1
        attempt.held, attempt.position = new, 0
        self._state.add(new)
        self._settler.forget(old, position)

    async def _move(self, token: Token, position: int, fresh: Token) -> bool:
        store = self._state.store
        try:
            return await store.detach(token, position, fresh)
        except OutcomeUnknown:
            # The answer was lost. The store moved the attempt if the new lease exists.
            pulse = await store.heartbeat([fresh], self._state.settings.lease)
            return fresh not in pulse.lost or await store.detach(token, position, fresh)

    def _transactional(self) -> Transactional:
        store = self._state.store
        if not isinstance(store, Transactional):
            raise Unsupported("this store cannot complete a job inside a transaction: use SQLite or PostgreSQL")
        return store

    def _settlement(self, attempt: Attempt, result: Any) -> Settlement:
        return retry.done(outcome_of.encode_result(attempt, result), attempt.own.result_ttl)

    def _on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


@contextmanager
def _completing(attempt: Attempt) -> Generator[HeldLease]:
    """From here on the user's commit may end the job. If the store refuses, the mark is removed."""
    attempt.completed = True
    try:
        yield attempt.held
    except HeadraceError:
        attempt.completed = False
        raise


def _check_accepted(refused: frozenset[int]) -> None:
    if refused:
        raise LeaseLost(GONE)
