"""WRITE: hand settlements to the store until it has answered, and isolate the one that it cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.errors import ConfigError, OutcomeUnknown, SchemaMismatch, StoreFull, Unavailable, Unsupported
from headrace.model.job import Failure, JobState, NewJob, job_id
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.runtime import faults
from headrace.webhooks.deliver import batches_of
from headrace.worker import outcome_of
from headrace.worker.service import Backoff, OutageLog, log
from headrace.worker.state import HeldLease, WorkerState

MAX_BYTES = 4 * 1024 * 1024
"""Results and failures of one call to the store; PostgreSQL refuses a message of 1 GiB."""
TRIES = 3
"""How often the store may fail on one settlement before the settlement counts as bad."""
BAD = "bad_settlement"
"""The note of a job whose outcome the store cannot take."""
PASSING = (Unavailable, OutcomeUnknown, StoreFull, SchemaMismatch, ConfigError)
"""Errors whose cause is not the content: the store is away, the disk is full, or a right is missing."""

Batch = Sequence[tuple[int, Settlement]]


class Writer:
    """Calls `settle` for one lease after the other."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._outage = OutageLog("settling")
        self.failing = False
        """The store accepts no writes. The worker claims nothing, because it could not settle it."""

    async def write(self, held: HeldLease, batch: Batch, *, large: bool) -> tuple[frozenset[int], bool]:
        """The positions refused, and whether an answer was lost. `large`: some have results or failures."""
        refused: frozenset[int] = frozenset()
        unsure = False
        for part in in_parts(batch) if large else [batch]:
            some, doubtful = await self._until_answered(held, part)
            refused |= some
            unsure = unsure or doubtful
        return refused, unsure

    async def _until_answered(self, held: HeldLease, batch: Batch) -> tuple[frozenset[int], bool]:
        """Repeat until the store answers. Settling twice under a valid lease changes nothing."""
        backoff = Backoff()
        unsure, errors = False, 0
        while not held.lost:
            if faults.ARMED:
                faults.reach("settle")
            token, calls = held.token, self._state.calls
            try:
                refused = await calls.timed("settle", self._state.store.settle(token, batch))
            except PASSING as error:
                unsure = unsure or isinstance(error, OutcomeUnknown)
                self._outage.raise_(error)
                self.failing = True
            except Exception as error:  # noqa: BLE001  # neither a bad outcome nor a store's bug ends the worker
                unsure = True
                if len(batch) > 1:
                    return await self._halves(held, batch)
                errors += 1
                if errors >= TRIES:
                    await self._replace(held, batch[0], error)
                    return frozenset(), True
            else:
                if faults.ARMED:
                    faults.reach("settled")
                    if any(isinstance(settlement, Again) and settlement.waits for _, settlement in batch):
                        faults.reach("suspended")
                calls.batches += 1
                calls.settled += len(batch) - len(refused)
                self._outage.settle()
                self.failing = False
                if not refused or (token == held.token and not self._state.reaping):
                    return refused, unsure
                # The janitor has renewed the lease under a fresh token, or may do so just now.
            await asyncio.sleep(backoff.next())
        # No code waits for this answer any more. If another call fails, it logs the outage again.
        self.failing = False
        return frozenset(position for position, _ in batch), unsure

    async def _halves(self, held: HeldLease, batch: Batch) -> tuple[frozenset[int], bool]:
        """The store failed on one of these settlements: find it, and settle the others."""
        middle = len(batch) // 2
        first, _ = await self._until_answered(held, batch[:middle])
        second, _ = await self._until_answered(held, batch[middle:])
        return first | second, True

    async def _replace(self, held: HeldLease, bad: tuple[int, Settlement], error: Exception) -> None:
        """End a job whose settlement the store cannot accept as dead, with the store's error as the reason."""
        position, settlement = bad
        batch, ord, attempt = held.jobs[position]
        id = job_id(batch, ord)
        kind, (message, _) = outcome_of.kind_of(error), outcome_of.describe(error)
        log.error(
            "the store cannot take how job %s ended, so the job ends as dead (%s): %s: %s",
            id,
            BAD,
            kind,
            message,
            exc_info=error,
            extra={"event": "settlement.bad", "job_id": str(id)},
        )
        text = outcome_of.bounded(
            f"the store cannot take how this attempt ended: {kind}: {message}", outcome_of.MAX_MESSAGE
        )
        failure = Failure(attempt, BAD, text, "", datetime.now(UTC), self._state.name)
        failures = settlement.failures if isinstance(settlement.failures, int) else None
        instead = Finish(JobState.DEAD, note=BAD, failure=failure, failures=failures)
        while not held.lost:
            try:
                await self._state.store.settle(held.token, [(position, instead)])
            except PASSING as passing:
                self._outage.raise_(passing)
                self.failing = True
                await asyncio.sleep(1.0)
            except Exception:  # noqa: BLE001  # the store's bug is not this worker's end
                log.exception("job %s cannot be settled at all: it runs again when its lease has expired", id)
                return
            else:
                self._outage.settle()
                self.failing = False
                return

    async def announce(self, held: HeldLease, news: list[NewJob]) -> None:
        """Enqueue deliveries before the settlement, because a worker that dies after a settlement would lose them."""
        batches, backoff = batches_of(news), Backoff()
        while not held.lost:
            try:
                for batch in batches:
                    await self._state.store.enqueue(batch)
            except Unsupported as error:
                log.error("%d webhook deliveries are lost: this worker may not enqueue them: %s", len(news), error)
                return
            except PASSING as error:
                self._outage.raise_(error)
            except Exception:  # noqa: BLE001  # a store's bug must not end the worker
                log.exception("the store cannot accept %d webhook deliveries: they are lost", len(news))
                return
            else:
                if faults.ARMED:
                    faults.reach("announced")
                return
            self.failing = True
            await asyncio.sleep(backoff.next())


def in_parts(batch: Batch, most: int = MAX_BYTES) -> Iterator[Batch]:
    """A batch in parts of at most `most` bytes; one settlement that is larger is a part of its own."""
    start = size = 0
    for index, (_, settlement) in enumerate(batch):
        weight = _weight(settlement)
        if size + weight > most and index > start:
            yield batch[start:index]
            start, size = index, 0
        size += weight
    yield batch[start:]


def _weight(settlement: Settlement) -> int:
    if settlement is DONE:
        return 0
    failure = settlement.failure
    weight = 0 if failure is None else len(failure.message) + len(failure.traceback)
    if isinstance(settlement, Finish) and settlement.result is not None:
        weight += len(settlement.result)
    return weight
